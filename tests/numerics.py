"""Run the numerical suites under each kind of arithmetic that can be forced here: ``make numerics``.

    python tests/numerics.py [SETTING ...]      all settings, or those named; prints a table, exit code 1 on any failure

torch chooses its loops by the CPU (ATEN_CPU_CAPABILITY); MKL, oneDNN and numpy's OpenBLAS choose their kernels; all of
them choose how many threads share a sum. A machine that has only one of these kinds is one of the settings here.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]

SETTINGS = {
    "as it is": {},
    "default": {"ATEN_CPU_CAPABILITY": "default"},
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2"},
    "two threads": {"OMP_NUM_THREADS": "2"},
    "compatible": {
        "ATEN_CPU_CAPABILITY": "default",
        "MKL_CBWR": "COMPATIBLE",
        "DNNL_MAX_CPU_ISA": "SSE41",
        "OPENBLAS_CORETYPE": "Prescott",
    },
    "libraries at avx2": {
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "MKL_CBWR": "AVX2",
        "DNNL_MAX_CPU_ISA": "AVX2",
        "OPENBLAS_CORETYPE": "Haswell",
    },
}

SUITES = {
    "kernels": (
        "tests/test_error_bounds.py",
        "tests/kernels/test_elementwise.py",
        "tests/kernels/test_masked_softmax.py",
        "tests/kernels/test_cross_entropy.py",
        "tests/kernels/test_attention.py",
        "tests/kernels/test_megatron_extensions.py",
        "tests/kernels/test_adamw.py",
        "tests/kernels/test_l2_norms.py",
        "tests/kernels/test_verification.py",
        "tests/kernels/test_npu.py",
    ),
    "triton": ("tests/kernels/test_triton.py",),
    "native": (
        "tests/native/model/test_decoder.py",
        "tests/native/test_options_in_float64.py",
        "tests/native/step/test_trainer.py",
        "tests/native/step/test_optimizer.py",
        "tests/native/test_whole_runs.py",
        "tests/native/test_meshes.py",
        "tests/native/test_compile.py",
    ),
    "plugins": (
        "tests/plugins/hf/test_kernel_swaps.py",
        "tests/plugins/megatron_lm/test_fused_operations.py",
        "tests/plugins/test_glm.py",
        "tests/plugins/test_gradient_clipping.py",
        "tests/plugins/test_megatron_deepspeed.py",
        "tests/plugins/test_old_dependencies.py",
    ),
    "emulation": (
        "tests/emulation/operators/test_gradients.py",
        "tests/emulation/operators/test_behaviour.py",
        "tests/emulation/test_on_device.py",
        "tests/kernels/test_on_emulated_npu.py",
    ),
}


def main(names: list[str]) -> int:
    """Run the settings; return the exit code."""
    if unknown := [name for name in names if name not in SETTINGS]:
        print(f"numerics: no setting {', '.join(unknown)} - choose from {', '.join(SETTINGS)}", file=sys.stderr)
        return 2
    failed = []
    for setting in names or SETTINGS:
        for suite, files in SUITES.items():
            began = time.monotonic()
            command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files]
            ended = subprocess.run(
                command,
                cwd=ROOT,
                env={**os.environ, **SETTINGS[setting], "ASCEND_ADAPT_EVERY_CASE": "1"},
                capture_output=True,
                text=True,
            )
            counts = re.findall(r"\d+ (?:passed|failed|error|skipped)", ended.stdout.rpartition("\n=")[2][-200:])
            print(f"{setting:18} {suite:10} {', '.join(counts)} ({time.monotonic() - began:.0f} s)", flush=True)
            if ended.returncode:
                failed.append((setting, suite))
                print("\n".join(line for line in ended.stdout.splitlines() if line.startswith(("E  ", "FAILED"))))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
