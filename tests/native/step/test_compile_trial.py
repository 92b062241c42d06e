"""``--compile`` stays on only where its steps are faster, by a planted clock; the model is really compiled and run."""

from __future__ import annotations

import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from native.small_models import GPT2, batch, config

from ascend_adapt.native.model.layers import TransformerBlock
from ascend_adapt.native.parallel import mesh as meshes
from ascend_adapt.native.step import trainer as trainers
from ascend_adapt.native.step.compile_trial import TIMED, WARM_UP, CompileTrial
from ascend_adapt.native.step.trainer import Trainer

# The compiler's own; one that is an error ends it.
pytestmark = pytest.mark.filterwarnings("ignore")
ALONE = meshes.single(torch.device("cpu"))
BOTH = WARM_UP + TIMED
SETTINGS = replace(config(replace(GPT2, num_layers=1), micro=8), compile=True)


class Clock:
    """Advances by what a block is said to take, compiled or not; real steps take what the machine's load makes them."""

    def __init__(self) -> None:
        self.now = 0.0
        self.ran: list[str] = []

    def ran_one(self, way: str, seconds: float) -> None:
        self.ran.append(way)
        self.now += seconds


@pytest.fixture
def trained(monkeypatch):
    """trained(compiled, plain): train on a block that takes so many ms each way; return how it ran, and the trainer."""

    def run(compiled, plain):
        torch._dynamo.reset()
        clock, forward = Clock(), TransformerBlock.forward

        def backend(graph, inputs):
            def call(*given):
                clock.ran_one("compiled", compiled / 1e3)
                return graph.forward(*given)

            return call

        def slower_forward(self, *given, **more):
            if not torch.compiler.is_compiling():
                clock.ran_one("plain", plain / 1e3)
            return forward(self, *given, **more)

        monkeypatch.setattr(TransformerBlock, "forward", slower_forward)
        monkeypatch.setattr(
            TransformerBlock, "compile", lambda self: torch.nn.Module.compile(self, backend=backend, fullgraph=True)
        )
        monkeypatch.setattr(trainers, "time", SimpleNamespace(perf_counter=lambda: clock.now))
        trainer = Trainer(SETTINGS, ALONE)
        for number in range(2 * BOTH + 2):
            trainer.step(batch(number, SETTINGS), 1, 3e-3, 0.1)
        return clock.ran, trainer

    return run


@pytest.mark.parametrize(
    ("compiled", "plain", "then", "message"),
    [
        (
            10.3,
            10.0,
            "plain",
            "compile: off, 1.03x slower than without at this shape: 10.3 and 10.0 ms per micro batch",
        ),
        (10.0, 10.5, "compiled", "compile: on, 1.05x faster than without at this shape: 10.0 and 10.5 ms"),
    ],
    ids=["slower", "faster"],
)
def test_the_faster_way_stays(trained, compiled, plain, then, message):
    ran, trainer = trained(compiled, plain)
    # The first step runs without the compiler: kernels choose their backends.
    assert ran == ["plain", *["compiled"] * (BOTH - 1), *["plain"] * BOTH, then, then]
    (said,) = trainer.messages()
    assert said.startswith(message), said
    assert trainer.messages() == []


def test_a_gain_within_the_noise_is_none():
    trial = CompileTrial(ALONE)
    for way in (10.0, 10.2):
        for number in range(BOTH):
            trial.step((way + (0.5 if number % 2 else -0.5)) / 1e3, 1)
    assert not trial.compiled
    assert "compile: off, 1.02x faster than without at this shape, less than the noise" in trial.messages()[0]


def test_a_deterministic_run_stays_compiled(trained, monkeypatch):
    monkeypatch.setenv("ASCEND_ADAPT_DETERMINISTIC", "1")
    ran, trainer = trained(20, 10)
    assert ran == ["plain", *["compiled"] * (2 * BOTH + 1)]
    assert trainer.messages() == [
        "compile: on, without timing uncompiled steps: a deterministic run must not depend on a clock"
    ]


def test_ranks_whose_clocks_disagree_decide_the_same():
    meeting, shared = threading.Barrier(2, timeout=60), []

    def sum_over_all(numbers):  # a stand-in for the all-reduce of two ranks
        shared.append(numbers.clone())
        meeting.wait()
        return sum(shared)

    mesh = SimpleNamespace(
        device=torch.device("cpu"), parallel=SimpleNamespace(world_size=2), sum_over_all=sum_over_all
    )
    trials = [CompileTrial(mesh), CompileTrial(mesh)]

    def rank(number, compiled):
        for seconds in [compiled] * BOTH + [10e-3] * BOTH:
            trials[number].step(seconds, 1)

    others = threading.Thread(target=rank, args=(1, 9e-3))
    others.start()
    rank(0, 12e-3)
    others.join()
    assert [one.compiled for one in trials] == [False, False]
    said = [one.messages() for one in trials]
    assert said[0] == said[1]
    assert "1.05x slower" in said[0][0]
