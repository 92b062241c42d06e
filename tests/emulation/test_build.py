"""The emulated CANN defines every function that a torch_npu wheel needs, for each release and architecture."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from ascend_adapt import probe
from ascend_adapt.emulation import build, symbols, wheel
from ascend_adapt.errors import EmulationError

CROSS_COMPILER = "aarch64-linux-gnu-gcc"


@pytest.fixture(scope="module")
def torch_libraries():
    return probe.root_folder("torch") / "torch" / "lib"


@pytest.fixture(scope="module")
def npu():
    return wheel.for_installed_torch(os.environ)


@pytest.fixture(scope="module")
def npu_aarch64(npu, tmp_path_factory):
    """The same release for aarch64, the architecture of 910B machines, unpacked in a temporary folder."""
    into = tmp_path_factory.mktemp("aarch64")
    platform = ("--platform", "manylinux_2_28_aarch64", "--python-version", "3.11")
    file = wheel.download(f"torch_npu=={npu.version}", into, platform)
    shutil.unpack_archive(file, into / "site", "zip")
    return wheel.Wheel(into / "site", npu.version)


def test_nothing_is_missing(npu, torch_libraries):
    home = build.cann_home(npu, os.environ)
    wanted = set(symbols.cann_functions(npu, torch_libraries))
    assert {"aclrtMalloc", "aclrtCreateEventExWithFlag", "MsprofGetHashId"} < wanted
    assert wanted <= symbols.defined(home / "lib64" / "libascendcl.so")
    names = symbols.cann_libraries(npu, torch_libraries)
    assert {"libascendcl.so", "libhccl.so", "libge_runner.so", "libgraph.so", "libacl_op_compiler.so"} <= set(names)
    assert {path.name for path in (home / "lib64").glob("*.so")} == set(names)


def test_a_function_that_is_not_emulated_fails_by_its_name(npu, tmp_path):
    home = build.cann_home(npu, os.environ)
    program = (
        "import ctypes; lib = ctypes.CDLL('libge_runner.so'); lib.aclGetRecentErrMsg.restype = ctypes.c_char_p; "
        "print(lib.rtKernelLaunch(), lib.aclGetRecentErrMsg().decode())"
    )
    env = {"LD_LIBRARY_PATH": str(home / "lib64")}
    output = subprocess.run(
        ["python3", "-c", program], env={**os.environ, **env}, capture_output=True, text=True
    ).stdout
    assert output == "200006 rtKernelLaunch: the emulated CANN does not have it\n"


def test_both_architectures_need_the_same_functions(npu, npu_aarch64, torch_libraries):
    for found in (symbols.cann_functions, symbols.cann_libraries):
        assert found(npu_aarch64, torch_libraries) == found(npu, torch_libraries)


def test_it_compiles_for_aarch64(npu_aarch64, tmp_path):
    compiler = shutil.which(CROSS_COMPILER)
    if compiler is None:
        pytest.skip(f"no {CROSS_COMPILER} here — apt-get install gcc-aarch64-linux-gnu")
    alone = subprocess.run([compiler, "-E", "-"], input="#include <stdint.h>", capture_output=True, text=True)
    if alone.returncode:
        pytest.skip(f"{CROSS_COMPILER} has no C library here — apt-get install libc6-dev-arm64-cross")
    build.build(npu_aarch64, compiler, tmp_path)
    header = subprocess.run(["readelf", "-h", tmp_path / "lib64" / "libascendcl.so"], capture_output=True, text=True)
    assert "AArch64" in header.stdout


def test_another_compiler_builds_again(npu, tmp_path):
    slow = tmp_path / "compiler"
    slow.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo mine && exit\nexec {shutil.which("gcc")} "$@"\n')
    slow.chmod(0o755)
    assert build.cann_home(npu, {**os.environ, "CC": str(slow)}) != build.cann_home(npu, os.environ)


def test_a_compiler_that_fails(npu, tmp_path):
    broken = tmp_path / "compiler"
    broken.write_text('#!/bin/sh\n[ "$1" = --version ] && echo broken && exit\necho error: no >&2; exit 1\n')
    broken.chmod(0o755)
    environ = {**os.environ, "CC": str(broken), "ASCEND_ADAPT_CACHE": str(tmp_path / "cache")}
    with pytest.raises(EmulationError, match="error: no, expected a C compiler for this machine — set CC"):
        build.cann_home(npu, environ)
    assert not list((tmp_path / "cache").glob("cann/[!.]*"))


@pytest.mark.parametrize(
    ("program", "problem"),
    [("#!/bin/sh\nexit 3\n", "ended with exit code 3"), ("\x7fELF", "Exec format error")],
    ids=["fails", "no program"],
)
def test_a_compiler_without_output(npu, tmp_path, program, problem):
    broken = tmp_path / "compiler"
    broken.write_text(program)
    broken.chmod(0o755)
    environ = {**os.environ, "CC": str(broken), "ASCEND_ADAPT_CACHE": str(tmp_path / "cache")}
    with pytest.raises(EmulationError, match=f"compiler: {problem}, expected a C compiler for this machine — set CC"):
        build.cann_home(npu, environ)


def test_the_sources_are_part_of_the_package():
    import configparser

    parser = configparser.ConfigParser()
    parser.read(Path(__file__).parents[2] / "setup.cfg")
    patterns = parser["options.package_data"]["ascend_adapt.emulation"].split(", ")
    packaged = {path for pattern in patterns for path in Path(build.__file__).parent.glob(pattern)}
    assert packaged == set(build.SOURCES.iterdir())
