"""Before its first use a backend is compared with the reference, without any effect on the user's computation."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from ascend_adapt.errors import BackendUnavailable, KernelError
from ascend_adapt.kernels import dispatch, gelu, layer_norm, masked_softmax, requests, run_record, verification
from ascend_adapt.kernels.comparison import compare
from ascend_adapt.kernels.operators.attention import AttentionCall
from ascend_adapt.kernels.operators.gelu import _torch as gelu_torch
from ascend_adapt.kernels.samples import samples


@pytest.fixture
def wrong_gelu(monkeypatch):
    real = gelu_torch.run
    monkeypatch.setattr(gelu_torch, "run", lambda call: real(call) * 1.01)


def test_a_backend_that_disagrees_is_not_used_and_its_errors_are_logged(wrong_gelu):
    x = torch.randn(3, 8)
    right = torch.nn.functional.gelu(x)
    torch.testing.assert_close(gelu(x), right)
    (choice,) = dispatch.choices()
    ((name, why),) = choice.passed_over
    assert (choice.backend, name) == ("reference", "torch")
    assert "differs by 0.01, 0.0001 is allowed" in why


def test_a_requested_one_raises_with_its_errors(wrong_gelu):
    requests.state({"gelu": "torch"})
    with pytest.raises(BackendUnavailable, match=r"'torch' was requested, but gelu: torch on .* differs by 0\.01"):
        gelu(torch.randn(3, 8))


def test_a_class_of_shapes_is_compared_once(monkeypatch):
    seen = []
    monkeypatch.setattr(verification, "compare", lambda *given: seen.append(given) or compare(*given))
    for rows in (5, 6, 7, 8):
        gelu(torch.randn(rows, 8))
    assert len(seen) == 1
    gelu(torch.randn(9, 8))
    assert len(seen) == 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_small_call_is_of_the_same_kind(dtype):
    known = dispatch.kernels()
    for name, kind, call in samples(torch.device("cpu"), dtype):
        small = call.small()
        assert small is not None
        for one in dict.fromkeys(one.name for one, unfit in known[name].candidates(call) if not unfit):
            found = compare(known[name], one, small)
            assert found.agrees, (kind, str(found))
        for field, value in vars(call).items():
            assert (value is None) == (getattr(small, field) is None)
            assert getattr(value, "requires_grad", None) == getattr(getattr(small, field), "requires_grad", None)


def test_the_small_call_has_the_masks_of_the_last_queries_and_keys():
    q = torch.randn(3, 4, 300, 16)
    mask, bias = torch.rand(3, 1, 300, 300) < 0.5, torch.randn(4, 1, 300)
    call = AttentionCall(q, q[:, :2], q[:, :2], masked_out=mask, bias=bias, causal=True, scale=1.0)
    small = call.small()
    assert [tuple(each.shape) for each in (small.q, small.k)] == [(1, 2, 128, 16), (1, 1, 128, 16)]
    assert torch.equal(small.masked_out, mask[:1, :, -128:, -128:])
    assert torch.equal(small.bias, bias[:2, :, -128:])
    assert torch.equal(replace(call, masked_out=mask[0, 0, :1]).small().masked_out, mask[0, 0, :1, -128:])


def test_it_does_not_affect_checkpoints_autocast_or_inference_mode():
    x = torch.randn(4, 8, requires_grad=True)
    weight = torch.ones(8)

    def block(x):
        # Compared within the first run of a checkpoint, and not in the second.
        return masked_softmax(layer_norm(gelu(x), weight).view(1, 1, 4, 8))

    checkpoint(block, x, use_reentrant=False).sum().backward()
    assert x.grad is not None
    assert len(dispatch.choices()) == 3
    dispatch.forget()
    verification._known.clear()
    with torch.autocast("cpu", torch.bfloat16), torch.inference_mode():
        block(x)
    assert {choice.backend for choice in dispatch.choices()} == {"torch", "reference"}
    assert not any(choice.passed_over for choice in dispatch.choices() if choice.kernel != "masked_softmax")


def test_random_numbers_continue_as_without_it():
    torch.manual_seed(3)
    right = torch.randn(4)
    torch.manual_seed(3)
    gelu(torch.ones(2, 8))
    assert torch.equal(torch.randn(4), right)


def test_without_data_nothing_is_compared_or_recorded():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        assert gelu(torch.empty(2, 8)).shape == (2, 8)
    assert gelu(torch.empty(2, 8, device="meta")).shape == (2, 8)
    assert dispatch.choices() == ()
    assert verification._known == {}


def test_ranks_that_disagree_about_a_backend_stop(tmp_path, monkeypatch, wrong_gelu):
    monkeypatch.setenv("ASCEND_ADAPT_RUN_DIR", str(tmp_path))
    gelu(torch.randn(3, 8))
    (file,) = (tmp_path / run_record.FOLDER).iterdir()
    verdict = json.loads(file.read_text())
    assert (verdict["kernel"], verdict["backend"], verdict["card"]) == ("gelu", "torch", "cpu")
    assert "differs by 0.01" in verdict["disagreement"]
    # Another rank, where it agrees.
    dispatch.forget()
    verification._known.clear()
    monkeypatch.undo()
    monkeypatch.setenv("ASCEND_ADAPT_RUN_DIR", str(tmp_path))
    with pytest.raises(KernelError, match="backend 'torch' agrees with the reference on one rank and not on another"):
        gelu(torch.randn(3, 8))
