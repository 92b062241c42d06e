"""What a step of the native trainer costs the host: operators, reads on the host, graphs, and the kernels' dispatch.

Counts are those of torch 2.13 on a CPU, where a GPU's fused kernels are plain operators. A number that grows is work
that each step has more of: find out which operator it is, and whether it is worth it, before changing the number here.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from native.small_models import GPT2, LENGTH, NEOX, batch, config
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from ascend_adapt import kernels
from ascend_adapt.config.train_config import Precision
from ascend_adapt.kernels import dispatch
from ascend_adapt.native.model.layers import TransformerBlock
from ascend_adapt.native.parallel import mesh as meshes
from ascend_adapt.native.step.trainer import Trainer

ALONE = meshes.single(torch.device("cpu"))
READS = {"item", "tolist", "__bool__", "__float__", "__int__", "__index__", "cpu", "numpy", "nonzero"}


def settings_of(model, layers):
    return replace(config(replace(model, num_layers=layers), micro=8), precision=Precision("bf16"))


class Operators(TorchDispatchMode):
    """Counts dispatched operators by phase. Views are left out: they launch nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.phase, self.counts, self.masked = "update", Counter(), 0

    def __torch_dispatch__(self, function, types, given=(), named=None):
        phase = "backward" if torch._C._current_autograd_node() is not None else self.phase
        self.counts[phase] += not function.is_view
        if function is torch.ops.aten.index.Tensor:
            # A mask as an index: its number of elements is read on the host.
            self.masked += any(one is not None and one.dtype == torch.bool for one in given[1])
        return function(*given, **(named or {}))

    @contextmanager
    def during(self, phase):
        self.phase = phase
        yield
        self.phase = "update"


class Reads(TorchFunctionMode):
    """Counts calls that wait for a value of the device."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, function, types, given=(), named=None):
        if getattr(function, "__name__", "") in READS:
            self.names.append(function.__name__)
        return function(*given, **(named or {}))


def costs(model, layers):
    """Return the operators of a step by phase, and what it reads on the host."""
    settings = settings_of(model, layers)
    trainer, data = Trainer(settings, ALONE), batch(0, settings)
    for _ in range(2):  # kernels choose
        trainer.step(data, 1, 1e-3, 0.1)
    train = trainer.passes.train
    with Operators() as operators, Reads() as reads:

        def counted(*given):
            with operators.during("forward"):
                return train(*given)

        trainer.passes.train = counted
        trainer.step(data, 1, 1e-3, 0.1)
    return operators.counts, reads.names + ["index"] * operators.masked


@pytest.mark.parametrize(
    ("model", "layer", "rest"),
    [
        (GPT2, {"forward": 10, "backward": 19, "update": 12}, {"forward": 88, "backward": 14, "update": 30}),
        (NEOX, {"forward": 30, "backward": 39, "update": 12}, {"forward": 97, "backward": 12, "update": 30}),
    ],
    ids=["gpt2", "neox"],
)
def test_operators_of_a_step(model, layer, rest):
    (one, reads), (two, _) = costs(model, 1), costs(model, 2)
    # A layer more is, in "update", one cast of each of its 12 gradients to fp32: the rest is over all tensors at once.
    assert {phase: two[phase] - one[phase] for phase in layer} == layer
    assert {phase: one[phase] - layer[phase] for phase in rest} == rest
    # Loss, norm and votes come to the host together, once a step, after the optimizer was launched. The index is the
    # check of labels, which only a CPU has.
    assert reads == ["tolist", "index"]


@pytest.mark.filterwarnings("ignore")  # the compiler's own; one that is an error ends it
def test_compiled_blocks_have_one_graph_for_each_length(monkeypatch):
    monkeypatch.setattr(TransformerBlock, "compile", lambda self: torch.nn.Module.compile(self, backend="eager"))
    dispatch.forget()
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    settings = replace(settings_of(GPT2, 1), compile=True)
    trainer, seen = Trainer(settings, ALONE), []
    for length in (LENGTH, LENGTH, 12, 12, LENGTH):
        data = {name: each[:, :length] for name, each in batch(0, settings).items()}
        trainer.step(data, 1, 1e-3, 0.1)
        seen.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    # The first step of a length is eager: kernels choose then, and a choice would cut the graph. A length seen before
    # compiles once more, since the tables of choices have grown. Any other number is more, or cut, graphs.
    assert seen == [0, 1, 1, 2, 3]
    assert not torch._dynamo.utils.counters["graph_break"]


X, WEIGHT = torch.randn(8, 16), torch.ones(16)
HEADS = torch.randn(1, 2, 8, 8)
PLAIN = torch.nn.functional
CALLS = {
    "layer_norm": (
        lambda: kernels.layer_norm(X, WEIGHT, WEIGHT),
        lambda: PLAIN.layer_norm(X, (16,), WEIGHT, WEIGHT),
    ),
    "gelu": (lambda: kernels.gelu(X), lambda: PLAIN.gelu(X)),
    "attention": (
        lambda: kernels.attention(HEADS, HEADS, HEADS, causal=True),
        lambda: PLAIN.scaled_dot_product_attention(HEADS, HEADS, HEADS, is_causal=True),
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_kernel_costs_the_host_a_few_times_torchs_call(name):
    ours, plain = CALLS[name]
    taken = {ours: [], plain: []}
    for _ in range(300):
        for call, times in taken.items():
            began = time.perf_counter()
            call()
            times.append(time.perf_counter() - began)
    ratio = statistics.median(taken[ours]) / statistics.median(taken[plain])
    print(f"{name}: {ratio:.2f}")
    # On so small tensors torch's call is only dispatch too. A second look at each argument would be another factor.
    assert ratio < 8
