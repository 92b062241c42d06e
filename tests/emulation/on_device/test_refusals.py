"""What a one-card 910B refuses or accepts unlike a CPU, and what torch_npu keeps of a tensor."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
import torch_npu
from torch_npu.npu.utils import get_cann_version

from ascend_adapt.errors import OperatorLimit

NPU = torch.device("npu:0")


def test_float8_is_stored_and_computes_nothing():
    stored = torch.ones(16, 16).to(torch.float8_e4m3fn).to(NPU)
    assert stored.cpu().dtype == torch.float8_e4m3fn
    for compute in (
        lambda: torch.ones(2, device=NPU).to(torch.float8_e4m3fn),
        lambda: stored.to(torch.float32),
        lambda: stored + stored,
        lambda: torch.zeros(2, dtype=torch.float8_e5m2, device=NPU),
        lambda: torch._scaled_mm(stored, stored.t(), torch.ones(1, device=NPU), torch.ones(1, device=NPU)),
    ):
        with pytest.raises(OperatorLimit, match="no tensor is float8 before the Ascend950"):
            compute()


def test_a_target_may_be_int32():
    logits, labels = torch.randn(4, 5, requires_grad=True), torch.tensor([0, 1, -100, 3])
    expected = F.cross_entropy(logits, labels)
    (gradient,) = torch.autograd.grad(expected, logits)
    there = logits.detach().to(NPU).requires_grad_()
    found = F.cross_entropy(there, labels.to(NPU, torch.int32))
    found.backward()
    torch.testing.assert_close(found.cpu(), expected)
    torch.testing.assert_close(there.grad.cpu(), gradient)
    chosen = F.one_hot(torch.tensor([0, 2], dtype=torch.int32, device=NPU), 3)
    assert (chosen.dtype, chosen.tolist()) == (torch.int32, [[1, 0, 0], [0, 0, 1]])


@pytest.mark.parametrize("left", [0, 8])
def test_a_tensor_beyond_its_storage_is_named(left):
    tensor = torch.ones(8, device=NPU)
    tensor.untyped_storage().resize_(left)
    with pytest.raises(RuntimeError, match=rf"a tensor \[8\] float32: reaches beyond its storage of {left} bytes"):
        tensor.add(1)


def test_a_private_format_is_kept_where_it_is_allowed():
    matrix = torch.randn(16, 32, device=NPU)
    assert torch_npu.get_npu_format(torch_npu.npu_format_cast(matrix, 29)) == torch_npu.Format.ND
    torch.npu.config.allow_internal_format = True
    try:
        cast = torch_npu.npu_format_cast(matrix, 29)
    finally:
        torch.npu.config.allow_internal_format = False
    assert torch_npu.get_npu_format(cast) == 29
    assert cast.cpu().equal(matrix.cpu())
    assert (cast @ cast.t()).shape == (16, 16)


def test_the_old_format_of_torch_save_cannot_hold_a_tensor_of_a_device(tmp_path):
    with pytest.raises(RuntimeError, match="NPUStorageImpl"):
        torch.save(torch.ones(3, device=NPU), tmp_path / "old.pt", _use_new_zipfile_serialization=False)


def test_the_version_of_cann_is_that_of_the_emulated_one():
    assert {get_cann_version(part) for part in ("CANN", "RUNTIME", "HCCL", "OPP", "DRIVER")} == {"8.3.RC1"}
