"""The torch_npu wheel for the installed torch: found, verified, unpacked."""

from __future__ import annotations

import os
import shutil
import zipfile

import pytest

from ascend_adapt import probe
from ascend_adapt.emulation import wheel
from ascend_adapt.errors import EmulationError


@pytest.fixture
def environ(tmp_path):
    return {"ASCEND_ADAPT_CACHE": str(tmp_path / "cache")}


def make_wheel(path, version, record=""):
    """Write a file with the layout of a torch_npu wheel."""
    file = path / f"torch_npu-{version}-cp311-cp311-manylinux_2_28_x86_64.whl"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("torch_npu/__init__.py", "")
        archive.writestr(f"torch_npu-{version}.dist-info/RECORD", record)
    return file


@pytest.fixture
def torch_2_1(monkeypatch):
    monkeypatch.setattr(probe, "distribution_version", lambda name: "2.1.0+cpu" if name == "torch" else None)


def test_the_installed_torch_has_one():
    found = wheel.for_installed_torch(os.environ)
    assert found.version.startswith(probe.distribution_version("torch").partition("+")[0])
    assert {"libtorch_npu.so", "libtensorpipe.so"} < {path.name for path in found.libraries}
    assert not (set(os.sys.path) & {str(found.site)})


def test_a_given_wheel_file(environ, tmp_path, torch_2_1):
    file = make_wheel(tmp_path, "2.1.0.post17")
    found = wheel.for_installed_torch({**environ, "ASCEND_ADAPT_TORCH_NPU_WHEEL": str(file)})
    assert found.version == "2.1.0.post17"
    file.unlink()
    assert wheel.for_installed_torch(environ) == found  # from the cache, with nothing downloaded


def test_a_wheel_that_does_not_pair(environ, tmp_path, torch_2_1):
    file = make_wheel(tmp_path, "2.7.1")
    with pytest.raises(EmulationError, match=r"torch_npu 2.7.1 is not built for torch 2.1.0\+cpu, expected .* 2.1.0"):
        wheel.for_installed_torch({**environ, "ASCEND_ADAPT_TORCH_NPU_WHEEL": str(file)})


def test_no_torch(environ, monkeypatch):
    monkeypatch.setattr(probe, "distribution_version", lambda name: None)
    with pytest.raises(EmulationError, match="torch: is not installed, expected"):
        wheel.for_installed_torch(environ)


@pytest.mark.parametrize(("torch", "nearest"), [("2.7.0+cpu", "2.7.1"), ("2.2.2", "2.3.1"), ("1.13.1", "2.1.0")])
def test_a_torch_that_no_torch_npu_pairs_with(environ, monkeypatch, torch, nearest):
    monkeypatch.setattr(probe, "distribution_version", lambda name: torch)
    reported = []
    with pytest.raises(
        EmulationError, match=rf"no torch_npu is built for it, .* install torch=={nearest}, the nearest"
    ):
        wheel.for_installed_torch(environ, reported.append)
    assert reported == []  # nothing was to be downloaded
    with pytest.raises(EmulationError, match="no torch_npu is built"):
        wheel.is_at_hand(torch, environ)


def test_pip_is_asked_about_a_torch_newer_than_any_known(environ, monkeypatch):
    monkeypatch.setattr(probe, "distribution_version", lambda name: "99.0.0")
    with pytest.raises(EmulationError, match=r"torch_npu==99.0.0.\*: pip finds no wheel for this Python"):
        wheel.for_installed_torch(environ)


def test_files_that_differ_from_the_record(environ, tmp_path, torch_2_1):
    file = make_wheel(tmp_path, "2.1.0", record="torch_npu/__init__.py,sha256=AAAA,0\n")
    with pytest.raises(EmulationError, match="does not match the wheel's RECORD"):
        wheel.for_installed_torch({**environ, "ASCEND_ADAPT_TORCH_NPU_WHEEL": str(file)})
    assert not list((tmp_path / "cache").glob("torch_npu/torch_npu*"))


def test_files_that_are_only_in_the_record(environ, tmp_path, torch_2_1):
    file = make_wheel(tmp_path, "2.1.0", record="torch_npu/_C.so,sha256=AAAA,0\n")
    with pytest.raises(EmulationError, match=r"_C.so does not match the wheel's RECORD — download it again"):
        wheel.for_installed_torch({**environ, "ASCEND_ADAPT_TORCH_NPU_WHEEL": str(file)})


def test_no_record(environ, tmp_path, torch_2_1):
    file = tmp_path / "torch_npu-2.1.0-cp311-cp311-manylinux_2_28_x86_64.whl"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("torch_npu/__init__.py", "")
    with pytest.raises(EmulationError, match="has no RECORD of its files, expected a complete wheel"):
        wheel.for_installed_torch({**environ, "ASCEND_ADAPT_TORCH_NPU_WHEEL": str(file)})


def test_a_truncated_cache(environ, tmp_path, torch_2_1):
    found = wheel.for_installed_torch({**environ, "ASCEND_ADAPT_TORCH_NPU_WHEEL": str(make_wheel(tmp_path, "2.1.0"))})
    (found.site / "torch_npu" / "__init__.py").unlink()
    with pytest.raises(EmulationError, match=r"torch_npu/__init__.py is missing.* — remove this folder"):
        wheel.for_installed_torch(environ)


@pytest.mark.parametrize("damage", ["cut", "renamed", "gone"])
def test_a_file_that_is_not_a_wheel(environ, tmp_path, torch_2_1, damage):
    file = make_wheel(tmp_path, "2.1.0")
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:50])
    elif damage == "renamed":
        file = shutil.move(file, tmp_path / "wheel.whl")
    else:
        file.unlink()
    with pytest.raises(EmulationError, match=r"expected a complete wheel|is not the name of a torch_npu wheel"):
        wheel.for_installed_torch({**environ, "ASCEND_ADAPT_TORCH_NPU_WHEEL": str(file)})
