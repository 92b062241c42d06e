"""The two halves of a micro batch take turns, so that each collective has a matrix product of the other to overlap."""

from __future__ import annotations

from contextlib import ExitStack
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from native.in_flight import REDUCTIONS, SPLIT
from native.small_models import LENGTH, MODELS
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from ascend_adapt.native.model import halves
from ascend_adapt.native.model.decoder import Decoder
from ascend_adapt.native.parallel.tensor_parallel import TensorParallel

LAYERS = 2
ATEN = torch.ops.aten
PRODUCTS = (ATEN.mm.default, ATEN.addmm.default, ATEN.addmm_.default)
SUMS = (ATEN.add.Tensor, ATEN.add_.Tensor)


@pytest.fixture
def group_of_two():
    """A process group whose other rank does not exist: its collectives compute nothing."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield dist.group.WORLD
    dist.destroy_process_group()


class Turns(TorchDispatchMode):
    """Counts the matrix products between the start of each collective and its wait, in the order of the starts."""

    def __init__(self):
        super().__init__()
        self.products, self.between, self.summed = 0, [], []

    def __enter__(self):
        self.changes = ExitStack()
        for name in (*REDUCTIONS, *SPLIT):
            if hasattr(dist, name):
                self.changes.enter_context(patch.object(dist, name, self.watching(name)))
        return super().__enter__()

    def __exit__(self, *error):
        self.changes.close()
        return super().__exit__(*error)

    def watching(self, name):
        original = getattr(dist, name)

        def call(*given, **named):
            work = original(*given, **named)
            if not named.get("async_op"):
                return work
            number, before = len(self.between), self.products
            self.between.append(None)

            def wait():
                self.between[number] = self.products - before
                return work.wait()

            return SimpleNamespace(wait=wait)

        return call

    def __torch_dispatch__(self, function, types, given=(), named=None):
        self.products += function in PRODUCTS
        result = function(*given, **(named or {}))
        if function in SUMS:
            self.summed.append(tuple(result.shape))
        return result


def decoder_of(model, group, *, sequence=True, **options):
    """Return the first stage of a model on one of two tensor-parallel ranks."""
    tp = TensorParallel(group, 2, 0, sequence, axis=0)
    decoder = Decoder(MODELS[model], tp, range(LAYERS), last=False, **options)
    for one in decoder.parameters():
        torch.nn.init.constant_(one, 0.01)
    decoder.in_halves = True
    return decoder


@pytest.mark.parametrize("sequence", [True, False], ids=["sequence", "all-reduce"])
@pytest.mark.parametrize("model", ["gpt2", "neox", "gated", "gpt_j_tied"])
def test_each_collective_has_a_product_to_overlap(group_of_two, model, sequence):
    decoder = decoder_of(model, group_of_two, sequence=sequence)
    with Turns() as turns:
        x = decoder(torch.zeros(4, LENGTH, dtype=torch.int64))
        of_forward = len(turns.between)
        x.sum().backward()
    layers = LAYERS * 2
    entered = LAYERS if model == "gpt_j_tied" else layers
    assert of_forward == 2 * (layers + entered * sequence)
    assert len(turns.between) - of_forward == 2 * (entered + layers * sequence)
    # A half's next product needs what it waits for: unless attention and MLP are parallel, those in between are the
    # other half's. A pass ends with a collective that has nothing to overlap, and begins with one.
    exposed = [number for number, products in enumerate(turns.between) if products == 0]
    ends = [of_forward - 1, len(turns.between) - 1]
    assert exposed == ([0, ends[0], of_forward, ends[1]] if sequence else ends)
    # The second half's product adds to the gradient of the first's, or each weight would be read and written again.
    weights = {tuple(one.shape) for one in decoder.layers.parameters() if one.ndim == 2}
    assert not weights.intersection(turns.summed)


@pytest.mark.parametrize(
    ("rows", "options", "grad", "halved"),
    [
        (4, {}, True, True),
        (4, {"recompute": "selective"}, True, True),
        (2, {}, True, False),
        (4, {}, False, False),
        (4, {"recompute": "full"}, True, False),
    ],
    ids=["even", "selective", "a row a rank", "evaluation", "recomputed"],
)
def test_which_micro_batches_run_in_halves(group_of_two, monkeypatch, rows, options, grad, halved):
    ran = []
    through = halves.through
    monkeypatch.setattr(halves, "through", lambda *given, **named: ran.append(True) or through(*given, **named))
    decoder = decoder_of("gpt2", group_of_two, **options)
    with torch.set_grad_enabled(grad):
        decoder(torch.zeros(rows, LENGTH, dtype=torch.int64))
    assert bool(ran) is halved
