"""Runs the kernel tables on the emulated NPU, in a separate process, and writes {name: "" or the problem}."""

from __future__ import annotations

import functools
import json
import sys
import traceback

from ascend_adapt.emulation import rank

rank.watch()

import torch  # noqa: E402
import torch_npu  # noqa: E402, F401
from kernels import test_attention  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from ascend_adapt.emulation import report  # noqa: E402
from ascend_adapt.errors import KernelError  # noqa: E402
from ascend_adapt.kernels import (  # noqa: E402
    adamw,
    attention,
    cross_entropy,
    dispatch,
    gelu,
    masked_softmax,
    rms_norm,
    rotary,
    swiglu,
)
from ascend_adapt.kernels.comparison import compare  # noqa: E402
from ascend_adapt.kernels.samples import samples  # noqa: E402


def attention_cases():
    for case in test_attention.CASES:
        for dtype in (torch.float32, torch.bfloat16):

            def run(case=case, dtype=dtype):
                dispatch.forget()
                test_attention.check(case, dtype, attention, "npu")
                (choice,) = dispatch.choices()
                return "" if choice.backend == "npu" else str(choice)

            yield f"attention, {case}, {str(dtype).removeprefix('torch.')}", run


def sample_cases():
    known = dispatch.kernels()
    for dtype in ("bfloat16", "float32"):
        for name, kind, call in samples(torch.device("npu"), getattr(torch, dtype)):

            def run(name=name, call=call):
                backend = known[name].choose(call).backend
                compared = compare(known[name], backend, call)
                return "" if compared.agrees else str(compared)

            yield f"{name}, {kind}, {dtype}", run


def late_gradient():
    dispatch.forget()
    lists = [[tensor.npu() if index < 4 else tensor for tensor in of] for index, of in enumerate(parameters())]
    adamw(*lists, lr=0.1, weight_decay=0.0)
    choice = [one for one in dispatch.choices() if one.kernel == "adamw"][-1]
    wrong = abs(lists[0][1].item() - 0.9) > 1e-6 or [step.item() for step in lists[4]] != [3.0, 1.0]
    return str((choice, lists)) if wrong or choice.backend != "npu" else ""


def narrow_gradients():
    """A gradient in 16 bits gives what the same one in fp32 does, times the factor."""
    results = []
    for dtype in (torch.bfloat16, torch.float32):
        dispatch.forget()
        lists = [[tensor.npu() if index < 4 else tensor for tensor in of] for index, of in enumerate(parameters())]
        grads = [gradient.to(dtype) for gradient in lists[1]]
        adamw(lists[0], grads, *lists[2:], lr=0.1, factor=torch.full((), 0.5, device="npu"))
        results.append((dispatch.choices()[-1].backend, [one.cpu() for of in lists[:1] + lists[2:4] for one in of]))
    equal = all(torch.equal(one, other) for one, other in zip(results[0][1], results[1][1], strict=True))
    return "" if equal and [backend for backend, _ in results] == ["npu", "npu"] else str(results)


def found_inf():
    """Neither tensors on the device nor step counters on the host change."""
    dispatch.forget()
    before = parameters()
    lists = [[tensor.npu() if index < 4 else tensor.clone() for tensor in of] for index, of in enumerate(before)]
    adamw(*lists, lr=0.1, found_inf=torch.ones((), device="npu"))
    backend = dispatch.choices()[-1].backend
    unchanged = all(torch.equal(lists[i][n].cpu(), before[i][n]) for i in (0, 2, 3, 4) for n in range(2))
    return "" if unchanged and backend == "npu" else str((backend, lists))


def recomputed():
    """The first call that requires grad is inside a backward pass, in a recomputed activation checkpoint."""
    dispatch.forget()
    query, key, value = (torch.randn(1, 2, 24, 40, device="npu", requires_grad=True) for _ in range(3))
    for reentrant in (True, False):
        causal = functools.partial(attention, causal=True, scale=0.3 + reentrant)
        checkpoint(causal, query, key, value, use_reentrant=reentrant).sum().backward()
    (again,) = torch.autograd.grad(attention(query, key, value, causal=True, scale=0.3).sum(), [query])
    (more,) = torch.autograd.grad(attention(query, key, value, causal=True, scale=1.3).sum(), [query])
    backends = {choice.backend for choice in dispatch.choices()}
    return "" if torch.allclose(query.grad, again + more) and backends == {"npu"} else str(dispatch.choices())


def second_derivatives():
    """Raise for every backend of torch_npu, whose autograd would drop them silently."""
    labels, turns = torch.arange(16, device="npu") % 8, torch.randn(1, 16, 1, 64, device="npu")
    weight = torch.ones(32, device="npu")
    wrong = {}
    for run, *shape in (
        (gelu, 2, 16, 32),
        (swiglu, 2, 16, 32),
        (lambda x: cross_entropy(x, labels), 16, 64),
        (masked_softmax, 1, 2, 32, 32),
        (lambda x: rms_norm(x, weight), 2, 16, 32),
        (lambda x: rotary(x, turns, turns), 2, 16, 4, 64),
        (lambda x: attention(x, x, x, causal=True), 1, 4, 128, 64),
    ):
        dispatch.forget()
        x = torch.randn(*shape, device="npu", requires_grad=True)
        (gradient,) = torch.autograd.grad(run(x).square().sum(), x, create_graph=True)
        choice = dispatch.choices()[-1]
        try:
            gradient.square().sum().backward()
        except KernelError:
            if choice.backend == "npu":
                continue
        wrong[choice.kernel] = choice.backend
    return str(wrong or "")


def parameters():
    """Return a parameter at its third step, and one at its first."""
    ones, halves, zeros = ([torch.full((1,), value) for _ in range(2)] for value in (1.0, 0.5, 0.0))
    return ones, halves, zeros, [each.clone() for each in zeros], [torch.tensor(2.0), torch.tensor(0.0)]


def main(to: str) -> None:
    results = {}
    late, within = ("adamw, a gradient that arrives late", late_gradient), ("attention, recomputed", recomputed)
    skipped = ("adamw, a step that found Inf", found_inf)
    narrow = ("adamw, gradients in 16 bits", narrow_gradients)
    second = ("second derivatives", second_derivatives)
    # Backward passes must not come last: their thread releases tensors and errors after the caller has continued. If
    # Python is already shutting down, that aborts the process ("terminate called without an active exception").
    for name, run in (second, within, *attention_cases(), *sample_cases(), late, skipped, narrow):
        try:
            results[name] = run()
        except Exception:
            results[name] = traceback.format_exc()
    results["limits kept"] = str(report.tally.violations or "")
    with open(to, "w") as file:
        json.dump(results, file)


if __name__ == "__main__":
    main(sys.argv[1])
