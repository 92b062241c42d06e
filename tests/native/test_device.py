"""What the native trainer asks of torch for its device."""

from __future__ import annotations

import pytest
import torch

from ascend_adapt.native import device


def test_a_job_that_must_repeat_has_torch_refuse_what_does_not() -> None:
    # A warning would not do: under warn_only torch's flash attention warns once, and its gradients do not repeat.
    environ = {"ASCEND_ADAPT_DETERMINISTIC": "1"}
    try:
        device.set_deterministic(environ)
        # As ascend-run --deterministic sets it; without, torch refuses matrix products on a GPU.
        assert environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
        torch.utils.deterministic.fill_uninitialized_memory = True


def test_a_deterministic_run_follows_one_without_a_workspace(monkeypatch) -> None:
    """In one process. torch raises an error at each matmul of the later run if there is still no workspace."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    environ = {}
    device.schedule_matmuls_statically(torch.device("cuda", 0), environ)
    try:
        environ["ASCEND_ADAPT_DETERMINISTIC"] = "1"
        device.set_deterministic(environ)
    finally:
        torch.use_deterministic_algorithms(False)
    assert environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"


def test_another_job_is_left_alone() -> None:
    for environ in ({}, {"ASCEND_ADAPT_DETERMINISTIC": "0"}, {"ASCEND_ADAPT_DETERMINISTIC": "false"}):
        device.set_deterministic(environ)
        assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize(
    ("kind", "capability", "environ", "added"),
    [
        ("cuda", (9, 0), {}, {"CUBLAS_WORKSPACE_CONFIG": ":0:0", "CUBLASLT_WORKSPACE_SIZE": "0"}),
        ("cuda", (9, 0), {"CUBLASLT_WORKSPACE_SIZE": "32"}, {"CUBLAS_WORKSPACE_CONFIG": ":0:0"}),
        # Set by --deterministic, or by the user.
        ("cuda", (9, 0), {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}, {}),
        ("cuda", (8, 0), {}, {}),
        ("cpu", (9, 0), {}, {}),
    ],
)
def test_cublas_has_no_workspace_on_hopper_unless_it_was_set(monkeypatch, kind, capability, environ, added) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    found = dict(environ)
    device.schedule_matmuls_statically(torch.device(kind, 0), found)
    assert found == {**environ, **added}
