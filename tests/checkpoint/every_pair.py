"""Every pair of dialects and parallel sizes, for every model that both express: each state arrives bit for bit.

pytest collects this only by name: `make convert-matrix`.
"""

from __future__ import annotations

import itertools
import shutil

import pytest
import torch
from checkpoint.small_checkpoints import MODELS, new_folder, output_of, state_of
from checkpoint.test_round_trips import WRITERS, same_arithmetic

from ascend_adapt.checkpoint.detection import open_checkpoint
from ascend_adapt.checkpoint.writing import Output

RANKS = list(itertools.product((1, 2, 4), (1, 2)))
PAIRS = [(before, after, name) for before in WRITERS for after in WRITERS for name in MODELS]


def sizes(dialect):
    """Return the parallel sizes of a dialect's files."""
    _, _, some, _ = WRITERS[dialect]
    if some == [(1, 1)]:
        return some
    return [(tensor, 0) for tensor in (1, 2, 4)] if "sequential" in dialect else RANKS


@pytest.mark.parametrize(("before", "after", "name"), PAIRS)
def test_every_pair(tmp_path, before, after, name):
    if name not in WRITERS[before][1] or name not in WRITERS[after][1]:
        pytest.skip("one of them cannot express the model")
    model, state = MODELS[name], state_of(MODELS[name])
    for tensor, pipeline in sizes(before):
        source_folder = new_folder(tmp_path / f"{tensor}-{pipeline}")
        write, _, _, more = WRITERS[before]
        write(output_of(model, state, tensor=tensor, pipeline=pipeline, **more), source_folder)
        source = open_checkpoint(source_folder)
        for tensor_after, pipeline_after in sizes(after):
            target = new_folder(tmp_path / "target")
            write, _, _, more = WRITERS[after]
            ranks = {"tensor": tensor_after, "pipeline": pipeline_after}
            write(Output(source.model, source.read, lambda amount: None, source.dtype, **ranks, **more), target)
            result = open_checkpoint(target)
            differing = [one for one in state if not torch.equal(result.read(one), state[one])]
            assert (differing, same_arithmetic(result.model, source.model)) == ([], True)
            shutil.rmtree(target)
