"""What may call itself hardware."""

from __future__ import annotations

from pathlib import Path

import pytest

from ascend_adapt.testing import hardware
from ascend_adapt.testing.hardware import NoHardware


def test_without_a_device_node_there_is_none(tmp_path: Path) -> None:
    with pytest.raises(NoHardware, match="has no davinci device node, expected a real NPU"):
        hardware.real_npu(dev=tmp_path)


def test_without_torch_npu_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "davinci0").touch()
    monkeypatch.setattr(hardware.probe, "distribution_version", lambda name: None)
    with pytest.raises(NoHardware, match="torch_npu is not installed"):
        hardware.real_npu(dev=tmp_path)


def test_the_runtime_is_the_library_that_is_mapped() -> None:
    maps = (
        "7f00-7f01 r-xp 00000000 08:01 1  /usr/lib/libc.so.6\n"
        "7f02-7f03 r-xp 00000000 08:01 2  /usr/local/Ascend/lib64/libascendcl.so\n"
    )
    assert hardware._loaded_library(maps) == Path("/usr/local/Ascend/lib64/libascendcl.so")
    assert hardware._loaded_library("7f00-7f01 r-xp 00000000 08:01 1  /usr/lib/libc.so.6\n") is None


@pytest.mark.parametrize(("name", "is_real"), [(b"Ascend910B3", True), (b"", False), (None, False), (b"host", False)])
def test_the_soc_must_be_an_ascend(name: bytes | None, is_real: bool) -> None:
    class Call:
        restype: object = None

        def __call__(self) -> bytes | None:
            return name

    library = type("Library", (), {"aclrtGetSocName": Call()})()
    if is_real:
        assert hardware._soc_name(library, "{}") == "Ascend910B3"
    else:
        with pytest.raises(NoHardware, match="aclrtGetSocName returns"):
            hardware._soc_name(library, "{}")
