"""The real torch_npu wheel on a machine without CANN, and the real transformers."""

from __future__ import annotations

import os
import sys

import pytest

from ascend_adapt.emulation import wheel
from ascend_adapt_plugins.hf import npu_without_cann

PATCH = "hf.broken_torch_npu_is_unavailable"


@pytest.fixture(scope="module")
def torch_npu() -> str:
    """The folder of an unpacked torch_npu for the installed torch."""
    environ = {name: value for name, value in os.environ.items() if name != "ASCEND_HOME_PATH"}
    return str(wheel.for_installed_torch(environ, lambda text: None).site)


def test_models_can_be_made(launch, torch_npu):
    ended = launch("import_models.py", python_path=torch_npu)
    assert ended.code == 0, ended.output
    assert "devices cpu cpu" in ended.output
    assert ended.outcome(PATCH)["state"] == "applied"


@pytest.mark.every_case
def test_without_the_patch_nothing_can_be_imported(launch, torch_npu):
    ended = launch("import_models.py", "--disable", PATCH, python_path=torch_npu)
    assert ended.code == 1
    assert "ImportError: libhccl.so" in ended.output


@pytest.mark.parametrize(
    ("source", "is_broken"), [(None, False), ("", False), ("raise OSError('libascendcl.so')", True)]
)
def test_only_one_that_cannot_be_imported_is_broken(source, is_broken, tmp_path, monkeypatch, caplog):
    if source is not None:
        (tmp_path / "some_npu.py").write_text(source)
        monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(npu_without_cann, "_broken", {})
    assert npu_without_cann._is_broken("some_npu") is npu_without_cann._is_broken("some_npu") is is_broken
    assert ("some_npu: is installed but cannot be imported (libascendcl.so)" in caplog.text) is is_broken
    sys.modules.pop("some_npu", None)
