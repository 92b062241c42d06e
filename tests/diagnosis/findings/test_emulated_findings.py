"""What is missing for a job on the emulated NPU; nothing is downloaded or built."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ascend_adapt.diagnosis import findings


@pytest.fixture
def host(machine, tmp_path):
    """Return a machine with a torch_npu wheel at hand."""
    (tmp_path / "torch_npu.whl").touch()
    environ = {
        "ASCEND_ADAPT_TORCH_NPU_WHEEL": str(tmp_path / "torch_npu.whl"),
        "ASCEND_ADAPT_CACHE": str(tmp_path / "cache"),
    }
    return replace(machine, device="npu-emulated", environ=environ)


def test_nothing_is_wrong(host, tmp_path):
    assert findings.examine(host) == ()
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("changed", "what", "must_fix"),
    [
        ({"CC": "no-such-compiler"}, "no-such-compiler: not found on PATH", True),
        ({"ASCEND_ADAPT_TORCH_NPU_WHEEL": ""}, "no torch_npu for torch 2.7.1+cpu is in ", False),
        (
            {"ASCEND_ADAPT_TORCH_NPU_WHEEL": "/nowhere.whl"},
            "ASCEND_ADAPT_TORCH_NPU_WHEEL=/nowhere.whl: is not a file",
            True,
        ),
    ],
)
def test_what_is_missing(changed, what, must_fix, host):
    (found,) = findings.examine(replace(host, environ={**host.environ, **changed}))
    assert found.what.startswith(what)
    assert found.must_fix is must_fix


def test_a_cache_that_others_may_write_to(host, tmp_path):
    (tmp_path / "cache").mkdir(mode=0o777)
    (tmp_path / "cache").chmod(0o777)
    (found,) = findings.examine(host)
    assert found.what.startswith(f"{tmp_path / 'cache'}: other users may write to it")
    assert found.must_fix
