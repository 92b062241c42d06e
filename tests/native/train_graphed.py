"""Train small models on the ranks of a job with and without graphs of steps, and write where they differ.

Usage: ascend-run --nproc N train_graphed.py OUTPUT CASES, CASES a JSON list of small_models.Case as objects. The graphs
are those of stand_in_graphs. Each case is trained eagerly, watched for races, then as graphs without interruption, then
as graphs to STOP, saved, and resumed by another trainer, whose first steps are eager again. A gradient of the last rank
is NaN in the steps SPOILED, which every rank skips.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist
from in_flight import InFlight
from small_models import Case, batch
from stand_in_graphs import stand_in_graphs

from ascend_adapt.config import buckets
from ascend_adapt.config.train_config import Checkpoint
from ascend_adapt.native import device as devices
from ascend_adapt.native.checkpoint.load import load
from ascend_adapt.native.checkpoint.save import Saver
from ascend_adapt.native.checkpoint.state import TrainState
from ascend_adapt.native.parallel import mesh as meshes
from ascend_adapt.native.step import step_graph
from ascend_adapt.native.step.trainer import Trainer

STOP = 6
EVALUATED = (5, 10)
SPOILED = (7, 10)
added = torch.zeros(())
"""What is added to a gradient of the last rank; graphs read it at each replay."""


def trainer_of(settings, mesh):
    """Return a trainer, one of whose gradients can be spoiled."""
    trainer = Trainer(settings, mesh)
    if dist.get_rank() == dist.get_world_size() - 1:
        next(trainer.decoders[-1].parameters()).register_hook(lambda gradient: gradient + added)
    return trainer


def rate(number):
    """Return the learning rate of a step, a number that fp32 has."""
    return 2.0**-9 * (1 + number % 4)


def steps(trainer, first, last):
    """Train from step ``first`` to before ``last``; return the loss, the norm and more of each."""
    settings, found = trainer.config, []

    def mine(number):
        return batch(number, settings, trainer.mesh.data_rank)

    for number in range(first, last):
        added.fill_(float("nan") if number in SPOILED else 0.0)
        done = trainer.step(mine(number), settings.batch.accumulation, rate(number), weight_decay=0.1)
        evaluation = trainer.evaluate(mine(1000), settings.batch.accumulation) if number in EVALUATED else None
        found.append((done.loss, repr(done.grad_norm), done.skipped, evaluation))
    return found


def weights(trainer):
    """Return copies of the weights that this rank trains."""
    return [one.local.clone() for one in trainer.parameters]


def replays(trainer):
    """Return the replays of the passes and of the update, of each kind of step."""
    return [(one.passes.replays, one.update.replays) for one in trainer.graphs._graphs.values()]


def compared(case, mesh, folder):
    """Train a case in all three ways; return what differs, and how often graphs were replayed."""
    settings = replace(case.settings, checkpoint=Checkpoint(load=folder, save=folder))
    os.environ[step_graph.VARIABLE] = "0"
    eager = trainer_of(settings, mesh)
    assert eager.graphs is None
    with InFlight() as watched:
        expected = steps(eager, 0, case.steps)
    os.environ[step_graph.VARIABLE] = "1"
    straight = trainer_of(settings, mesh)
    found = steps(straight, 0, case.steps)
    before = trainer_of(settings, mesh)
    halves = steps(before, 0, STOP)
    saver = Saver(before, Path(folder))
    saver.save(TrainState(STOP, 0, 0))
    saver.wait()
    saver.close()
    resumed = trainer_of(settings, mesh)
    load(resumed)
    halves += steps(resumed, STOP, case.steps)

    def differ(these, those):
        return [number for number, pair in enumerate(zip(these, those, strict=True)) if pair[0] != pair[1]]

    def moved(trainer):
        pairs = zip(eager.parameters, weights(eager), weights(trainer), strict=True)
        return [one.name for one, mine, right in pairs if not torch.equal(mine, right)]

    return {
        "races": watched.races,
        "skipped": [number for number, (_, _, skipped, _) in enumerate(expected) if skipped],
        "overlapped": watched.most > 0,
        "replays": replays(straight),
        "replays_resumed": replays(resumed),
        "graphed": differ(found, expected) + moved(straight),
        "resumed": differ(halves, expected) + moved(resumed),
    }


def main():
    output, cases = Path(sys.argv[1]), [Case(**each) for each in json.loads(sys.argv[2])]
    buckets.BUCKET = 20000  # or small models would have one
    device = devices.of_this_rank()
    dist.init_process_group(devices.backend(device))
    results = {}
    with tempfile.TemporaryDirectory() as mine, stand_in_graphs():
        for case in cases:
            folder = [str(Path(mine) / case.name)]
            dist.broadcast_object_list(folder)
            results[case.name] = compared(case, meshes.build(case.settings.parallel, device), folder[0])
        dist.barrier()
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, results)
    if dist.get_rank() == 0:
        output.write_text(json.dumps(everyone))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
