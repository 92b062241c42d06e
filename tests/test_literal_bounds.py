"""Every tolerance that is written down as a number is listed here, with why no length, dtype or condition is in it."""

from __future__ import annotations

import ast
from pathlib import Path

TESTS = Path(__file__).parent
NAMES = {"rtol", "atol", "rel", "abs", "rel_tol", "abs_tol", "tolerance"}

ELEMENTWISE = "a few operations on each number, no sums: tens of roundings fit"
SHORT = "sums of at most 64 terms of about 1: 64 roundings are 3.8e-6 of their magnitude in fp32, in any order"
SIXTEEN_BITS = "16 bits beside fp32: their rounding, which is alike on every machine, is all that differs"
FLOAT64 = "float64 beside float64 with 16 digits written down"

REASONS = {
    "alignment/test_digest.py": f"{SHORT}, of longer ones six digits; and the deviation of an estimate from 8 draws",
    "emulation/jobs/capabilities.py": f"attention and norms: {SHORT}; two steps of an optimizer: {ELEMENTWISE}",
    "emulation/jobs/collectives.py": f"statistics and attention over a few rows: {SHORT}",
    "emulation/jobs/cuda_packages.py": SHORT,
    "emulation/jobs/four_ranks.py": SIXTEEN_BITS,
    "emulation/on_device/test_aten.py": f"an optimizer's step: {ELEMENTWISE}",
    "emulation/operators/behaviour_cases.py": f"optimizers: {ELEMENTWISE}; attention: {SHORT}",
    "emulation/test_jobs.py": SIXTEEN_BITS,
    "evaluation/test_glm.py": "the run logs six digits of its loss",
    "evaluation/test_lm_eval.py": "four digits are what a perplexity is reported with",
    "evaluation/test_tasks.py": "four digits are what a perplexity is reported with",
    "kernels/test_adamw.py": ELEMENTWISE,
    "kernels/test_attention.py": f"{SIXTEEN_BITS}; and a share of 12800 draws, of deviation 0.004",
    "kernels/test_cross_entropy.py": "float64: 12 terms, 1e-12 is 4000 roundings of them",
    "kernels/test_masked_softmax.py": "six digits are written down",
    "kernels/test_megatron_extensions.py": SIXTEEN_BITS,
    "native/every_mesh.py": SIXTEEN_BITS,
    "config/test_flops.py": "seven digits are written down",
    "native/parallel/test_mesh.py": "the deviation of thousands of draws",
    "native/model/test_decoder.py": "float64 with an epsilon of 0.3: only the place of the epsilon is to be seen",
    "native/step/test_optimizer.py": ELEMENTWISE,
    "config/test_schedules.py": FLOAT64,
    "native/step/test_trainer.py": f"{SIXTEEN_BITS}; and 1e-4 that must be exceeded",
    "plugins/megatron_lm/test_fused_operations.py": SHORT,
    "plugins/test_gradient_clipping.py": "a root of a sum of squares of few terms halves their error",
    "plugins/test_megatron_deepspeed.py": f"{SHORT}; {SIXTEEN_BITS}",
    "plugins/test_old_dependencies.py": SHORT,
    "recipes/test_megatron.py": FLOAT64,
    "recipes/test_neox.py": FLOAT64,
    "test_error_bounds.py": "what the bounds themselves are",
}


def literals(file: Path) -> list[str]:
    """Return the tolerances of a file that are numbers."""
    found = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.keyword) and node.arg in NAMES:
            value = node.value.body if isinstance(node.value, ast.IfExp) else node.value
            if isinstance(value, ast.Constant) and isinstance(value.value, float) and value.value:
                found.append(f"{node.arg}={value.value}")
    return found


def test_every_file_with_a_literal_bound_has_a_reason():
    found = {str(file.relative_to(TESTS)) for file in TESTS.rglob("*.py") if literals(file)}
    assert found == set(REASONS), (
        "literal tolerances: compute them with tests/error_bounds.py, or give the reason here "
        f"(not listed: {sorted(found - set(REASONS))}, no longer there: {sorted(set(REASONS) - found)})"
    )


def test_a_literal_is_seen(tmp_path):
    (tmp_path / "test_x.py").write_text("assert_close(a, b, rtol=1e-5, atol=0)\nassert a == approx(b, rel=bound)\n")
    assert literals(tmp_path / "test_x.py") == ["rtol=1e-05"]
