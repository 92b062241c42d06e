"""Builds the emulated CANN for torch_npu releases that cannot run here: tests/emulation/releases.py [VERSION ...]

Each wheel is downloaded for this Python and both architectures, or read from --wheels. For each it prints how many CANN
functions the wheel needs, and which of them are missing. To run a release, its own torch is needed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

from ascend_adapt import probe
from ascend_adapt.emulation import build, symbols, wheel

RELEASES = ("2.1.0.post17", "2.7.1", "2.13.0", "2.14.0")
PLATFORMS = {
    "x86_64": ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64"),
    "aarch64": ("manylinux_2_28_aarch64", "manylinux_2_17_aarch64"),
}
COMPILERS = {"x86_64": "gcc", "aarch64": "aarch64-linux-gnu-gcc"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("versions", nargs="*", default=RELEASES)
    parser.add_argument("--wheels", type=Path, help="a folder of wheels to use instead of downloading")
    options = parser.parse_args()
    for version in options.versions:
        for machine, compiler in COMPILERS.items():
            with tempfile.TemporaryDirectory() as folder:
                print(
                    f"{version:14} {machine:8} {one(version, machine, compiler, Path(folder), options.wheels)}",
                    flush=True,
                )
    return 0


def one(version: str, machine: str, compiler: str, folder: Path, wheels: Path | None) -> str:
    if shutil.which(compiler) is None:
        return f"not built: no {compiler}"
    if wheels is not None:
        files = sorted(wheels.glob(f"torch_npu-{version}-*{machine}.whl"))
        if not files:
            return f"not built: no such wheel in {wheels}"
        file = files[0]
    else:
        platforms = [word for name in PLATFORMS[machine] for word in ("--platform", name)]
        python = f"{sys.version_info.major}.{sys.version_info.minor}"
        file = wheel.download(f"torch_npu=={version}", folder, [*platforms, "--python-version", python])
    shutil.unpack_archive(file, folder / "site", "zip")
    npu = wheel.Wheel(folder / "site", version)
    built = folder / "cann"
    built.mkdir()
    build.build(npu, compiler, built)
    wanted = symbols.cann_functions(npu, (probe.root_folder("torch") or Path()) / "torch" / "lib")
    missing = wanted_but_missing(built / "lib64" / "missing.c")
    have = symbols.defined(built / "lib64" / "libascendcl.so")
    assert set(wanted) <= have, sorted(set(wanted) - have)
    return f"built: needs {len(wanted)} functions, {len(missing)} are missing: {' '.join(missing)}"


def wanted_but_missing(source: Path) -> list[str]:
    return [line.split('"')[3] for line in source.read_text().splitlines() if "return emulated_missing" in line]


if __name__ == "__main__":
    os.environ.setdefault("PIP_DISABLE_PIP_VERSION_CHECK", "1")
    sys.exit(main())
