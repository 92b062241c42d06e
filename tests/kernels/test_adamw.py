"""adamw: a counter for every parameter, and comparison with torch's optimizer."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from ascend_adapt.errors import KernelArgumentError
from ascend_adapt.kernels import adamw, dispatch, requests
from ascend_adapt.kernels.operators.adamw import KERNEL, AdamwCall

BACKENDS = ("reference", "torch")


def one(value=1.0, grad=0.5, step=0.0):
    """Return lists of one parameter: params, grads, first and second moments, counters."""
    grads = [None if grad is None else torch.tensor([grad])]
    return [torch.tensor([value])], grads, [torch.zeros(1)], [torch.zeros(1)], [torch.tensor(step)]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_parameter_counts_steps_from_its_first_gradient(backend):
    requests.state({"adamw": backend})
    # Another parameter is at its third step when the first gradient of this one arrives.
    lists = [[*first, *second] for first, second in zip(one(step=2.0), one(), strict=True)]
    adamw(*lists, lr=0.1, weight_decay=0.0)
    assert lists[0][1].item() == pytest.approx(0.900000, abs=1e-6)
    assert [step.item() for step in lists[4]] == [3.0, 1.0]
    # The result with the other parameter's counter.
    shared = one(step=2.0)
    adamw(*shared, lr=0.1, weight_decay=0.0)
    assert shared[0][0].item() == pytest.approx(0.936119, abs=1e-6)


def test_a_gradient_that_is_not_contiguous_is_another_kind_of_call():
    """A backend that takes contiguous tensors, chosen in an earlier step, must not be used for this gradient."""
    param, grad, mean, square = (torch.zeros(3, 3) for _ in range(4))
    given = (param,), (grad,), (mean,), (square,), (torch.tensor(0.0),), 0.1, 0.9, 0.999, 1e-8, 0.0
    call = AdamwCall(*given)
    assert replace(call, grads=(grad.T,)).signature() != call.signature()


def test_fake_tensors_are_another_kind_of_call():
    """A backend that reads addresses must not be chosen for them, although it was for real ones."""
    real = [torch.zeros(3) for _ in range(4)]
    with FakeTensorMode() as mode:
        fake = [mode.from_tensor(each) for each in real]
    calls = [
        AdamwCall(*[(each,) for each in four], (torch.tensor(0.0),), 0.1, 0.9, 0.999, 1e-8, 0.0)
        for four in (real, fake)
    ]
    assert calls[0].signature() != calls[1].signature()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_parameter_without_a_gradient_stays(backend):
    requests.state({"adamw": backend})
    lists = one(grad=None, step=4.0)
    adamw(*lists)
    assert lists[0][0].item() == 1.0
    assert lists[4][0].item() == 4.0


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_is_torchs_optimizer(backend, maximize, dtype):
    requests.state({"adamw": backend})
    torch.manual_seed(0)
    mine = [torch.randn(5, 3, dtype=dtype), torch.randn(7, dtype=dtype)]
    theirs = [each.clone().requires_grad_() for each in mine]
    rates = {"lr": 0.05, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.1}
    optimizer = torch.optim.AdamW(theirs, foreach=False, maximize=maximize, **rates)
    moments = [[torch.zeros_like(each) for each in mine] for _ in range(2)]
    steps = [torch.tensor(0.0) for _ in mine]
    for turn in range(5):
        grads = [torch.randn_like(each) if (turn + index) % 3 else None for index, each in enumerate(mine)]
        adamw(mine, grads, *moments, steps, maximize=maximize, **rates)
        for parameter, grad in zip(theirs, grads, strict=True):
            parameter.grad = grad
        optimizer.step()
    for found, right in zip(mine, theirs, strict=True):
        torch.testing.assert_close(found, right.detach())


def test_low_precision_parameters_are_stepped_in_fp32():
    lists = [[each[0].bfloat16()] if index < 2 else each for index, each in enumerate(one())]
    adamw(*lists, lr=0.1, weight_decay=0.0)
    assert lists[0][0].dtype == torch.bfloat16
    assert lists[0][0].item() == pytest.approx(0.9, abs=4e-3)
    assert lists[2][0].item() == pytest.approx(0.05)


def state(gradient, found_inf=None, copies=()):
    """Return the arguments of a step of three parameters, at their third step."""
    torch.manual_seed(0)
    shapes = ((5, 3), (7,), (1,))
    params, means, squares = ([torch.randn(shape) for shape in shapes] for _ in range(3))
    steps = [torch.tensor(2.0) for _ in shapes]
    given = {"factor": torch.tensor(gradient), "found_inf": found_inf}
    grads = [torch.full_like(one, gradient).to(copies or torch.float32) for one in params]
    if copies:
        given["copies"] = [one.to(copies) for one in params]
    return (params, grads, means, [one.square() for one in squares], steps), given


def stepped(given):
    lists, named = given
    adamw(*lists, lr=0.1, **named)
    return [tensor for index in (0, 2, 3, 4) for tensor in lists[index]] + named.get("copies", [])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("copies", [(), torch.bfloat16], ids=["fp32", "copies"])
@pytest.mark.parametrize("gradient", [0.5, float("nan"), float("inf")])
def test_found_inf_skips_the_step(backend, copies, gradient):
    requests.state({"adamw": backend})
    (params, _, means, squares, steps), named = state(gradient, copies=copies)
    before = [*params, *means, *squares, *steps, *named.get("copies", [])]
    found = stepped(state(gradient, torch.tensor(1.0), copies))
    assert all(torch.equal(mine, right) for mine, right in zip(found, before, strict=True))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_step_without_inf_is_the_same_bit_for_bit(backend):
    requests.state({"adamw": backend})
    plain, marked = (stepped(state(0.5, mark, torch.bfloat16)) for mark in (None, torch.tensor(0.0)))
    assert all(torch.equal(mine, right) for mine, right in zip(marked, plain, strict=True))
    assert marked[-4] == 3.0


def test_nan_in_the_first_step_rejects_no_backend():
    """The comparison with the reference has values of its own."""
    requests.state(None)
    dispatch.forget()
    stepped(state(float("nan"), torch.tensor(1.0)))
    chosen = list(KERNEL.choices.values())[-1]
    assert (chosen.backend, chosen.passed_over) == ("torch", ())


def test_wrong_arguments_are_refused():
    params, grads, means, squares, steps = one()
    with pytest.raises(KernelArgumentError, match="grads: has 0 tensors, expected 1 as in params"):
        adamw(params, [], means, squares, steps)
    with pytest.raises(KernelArgumentError, match="two parameters share a counter"):
        adamw(params * 2, grads * 2, means * 2, squares * 2, steps * 2)
    with pytest.raises(KernelArgumentError, match=r"grads\[0\]: has shape \[2\], params\[0\] requires \[1\]"):
        adamw(params, [torch.zeros(2)], means, squares, steps)
    with pytest.raises(KernelArgumentError, match="betas="):
        adamw(params, grads, means, squares, steps, betas=(1.0, 0.9))
    with pytest.raises(KernelArgumentError, match=r"steps\[0\]: is float, expected a one-element fp32 tensor"):
        adamw(params, grads, means, squares, [0.0])
    with pytest.raises(KernelArgumentError, match=r"steps\[0\]: is torch.int64 \[\]"):
        adamw(params, grads, means, squares, [torch.tensor(0)])
    with pytest.raises(KernelArgumentError, match=r"exp_avgs\[0\]: is torch.int32 \[1\], expected a float tensor"):
        adamw(params, grads, [means[0].int()], squares, steps)
    with pytest.raises(KernelArgumentError, match="lr: is 'a', expected a number"):
        adamw(params, grads, means, squares, steps, lr="a")


def test_an_offloaded_optimizer_has_its_own_choice():
    """Parameters on the host and on a device are different kinds of call, even if all else is equal."""
    signatures = set()
    for device in ("cpu", "meta"):
        tensors = [(torch.zeros(1, device=device),) for _ in range(4)]
        signatures.add(AdamwCall(*tensors, (torch.tensor(0.0),), 0.1, 0.9, 0.999, 1e-8, 0.0).signature())
    assert len(signatures) == 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_a_clipped_step_is_fused_too(dtype):
    requests.state(None)
    params, grads, *rest = one()
    # Torch's optimizer knows no factor: the gradients are scaled in place first, which is no difference of results.
    adamw(params, [grads[0].to(dtype)], *rest, lr=0.1, weight_decay=0.0, factor=torch.tensor(0.5))
    chosen = list(KERNEL.choices.values())[-1]
    assert (chosen.backend, chosen.passed_over) == ("torch", ())
