"""CUDA graphs of a training step, on a CPU with a stand-in for torch.cuda.CUDAGraph."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from native.small_models import GPT2, NEOX, batch, config
from native.stand_in_graphs import CUDA, stand_in_graphs

from ascend_adapt.config.train_config import Checkpoint, LossScale, Precision
from ascend_adapt.native.checkpoint.load import load
from ascend_adapt.native.checkpoint.save import Saver
from ascend_adapt.native.checkpoint.state import TrainState
from ascend_adapt.native.parallel import mesh as meshes
from ascend_adapt.native.step import step_graph
from ascend_adapt.native.step.step_graph import EAGER_STEPS, KINDS_KEPT
from ascend_adapt.native.step.trainer import Trainer

ALONE = meshes.single(torch.device("cpu"))
SETTINGS = config(replace(GPT2, num_layers=2), micro=4)
DECAY = 0.1


@pytest.fixture
def graphed():
    """graphed(settings): a trainer whose steps are graphs of the stand-in; ``eager``: the same without a capture."""

    def made(settings=SETTINGS, *, eager=False):
        trainer = Trainer(settings, ALONE)
        trainer.graphs._stopped = eager
        return trainer

    with stand_in_graphs():
        yield made


def stepped(trainer, number, lr=3e-3, micro_batches=2, settings=SETTINGS):
    return trainer.step(batch(number, settings), micro_batches, lr, DECAY)


def weights(trainer):
    return [one.local.clone() for one in trainer.parameters]


def state_of(trainer):
    """Return copies of weights, moments and step counters."""
    optimizer = trainer.optimizer
    moments = [each.clone() for state in optimizer.states for each in state.values()]
    return [*weights(trainer), *moments, *(each.clone() for each in optimizer.steps)]


def replays(trainer):
    """Return the replays of each kind of step: of the passes, and of the update."""
    return [(one.passes.replays, one.update.replays if one.update else 0) for one in trainer.graphs._graphs.values()]


@pytest.mark.parametrize("model", [GPT2, NEOX], ids=["gpt2", "neox"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_replayed_steps_are_the_eager_ones(graphed, model, dtype):
    settings = replace(config(replace(model, num_layers=2), micro=4), precision=Precision(dtype))
    one, other = graphed(settings), graphed(settings, eager=True)
    for number in range(EAGER_STEPS + 5):
        # Each step has another batch and another learning rate; an evaluation between steps changes nothing.
        found, expected = (stepped(each, number, 1e-3 * (number + 1), settings=settings) for each in (one, other))
        assert found == expected, number
        if number == EAGER_STEPS + 3:
            assert one.evaluate(batch(99, settings), 2) == other.evaluate(batch(99, settings), 2)
    # The first step with the graph of the passes has an eager update, the next one captures that.
    assert replays(one) == [(5, 4)]
    assert all(torch.equal(mine, right) for mine, right in zip(weights(one), weights(other), strict=True))
    (message,) = one.messages()
    assert message == f"training steps run as CUDA graphs from now on; {step_graph.VARIABLE}=0 runs them eagerly"
    assert one.messages() == []


def test_the_next_batch_is_copied_before_its_step_and_only_once(graphed, monkeypatch):
    """A step also computes a batch that was not announced, or that has another shape."""
    one, other = graphed(), graphed(eager=True)
    for number in range(EAGER_STEPS + 2):
        assert stepped(one, number) == stepped(other, number)
    copied = []
    (graphs,) = one.graphs._graphs.values()
    original = graphs.inputs["tokens"].copy_
    monkeypatch.setattr(graphs.inputs["tokens"], "copy_", lambda given: copied.append(1) or original(given))
    batches = [batch(number, SETTINGS) for number in range(20, 25)]
    half = {name: tensor[:4] for name, tensor in batches[4].items()}
    steps = [(batches[0], batches[1], 2), (batches[1], batches[2], 2), (batches[3], half, 2), (half, batches[4], 1)]
    for now, announced, micro_batches in [*steps, (batches[4], None, 2)]:
        found = one.step(now, micro_batches, 1e-3, DECAY, meanwhile=lambda announced=announced: announced)
        assert found == other.step(now, micro_batches, 1e-3, DECAY)
    # Batches 0, 1 and 2; batch 3, which was not announced; and batch 4, which followed an eager step.
    assert len(copied) == 5


def test_a_step_of_another_shape_has_graphs_of_its_own(graphed):
    one, other = graphed(), graphed(eager=True)
    for number in range(2 * EAGER_STEPS + 4):
        half = {name: tensor[:4] for name, tensor in batch(number, SETTINGS).items()}
        for given, micro_batches in ((batch(number, SETTINGS), 2), (half, 1)):
            assert one.step(given, micro_batches, 1e-3, DECAY) == other.step(given, micro_batches, 1e-3, DECAY)
    assert replays(one) == [(EAGER_STEPS + 4, EAGER_STEPS + 3)] * 2


def test_kinds_beyond_those_kept_run_eagerly(graphed):
    trainer, data = graphed(), batch(0, SETTINGS)
    for rows in range(1, KINDS_KEPT + 2):
        for _ in range(EAGER_STEPS + 1):
            trainer.step({name: tensor[:rows] for name, tensor in data.items()}, 1, 1e-3, DECAY)
    assert len(replays(trainer)) == KINDS_KEPT


def test_votes_reach_a_replayed_step(graphed):
    trainer = graphed()
    for number in range(EAGER_STEPS + 3):
        stepped(trainer, number)
    asked = trainer.step(batch(50, SETTINGS), 2, 1e-3, DECAY, votes_to_stop=True, votes_to_save=True)
    after = stepped(trainer, 51)
    assert (asked.votes, asked.votes_to_save, after.votes, after.votes_to_save) == (1, 1, 0, 0)


def test_nan_in_a_replayed_step_names_its_parameters(graphed):
    trainer = graphed()
    for number in range(EAGER_STEPS + 3):
        stepped(trainer, number)
    trainer.parameters[0].local.view(-1)[:1] = float("nan")
    done = stepped(trainer, 50)
    assert (done.spoiled_weights, done.skipped) == ((trainer.parameters[0].name,), True)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize(
    "optimizer", [{}, {"clip_grad": 0.0}, {"decoupled": False}], ids=["clipped", "not clipped", "L2"]
)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_replayed_step_with_nan_or_inf_in_a_gradient_is_skipped(graphed, dtype, optimizer, value):
    """A number on the device spoils one gradient, also in a replay."""
    settings = replace(SETTINGS, precision=Precision(dtype), optimizer=replace(SETTINGS.optimizer, **optimizer))
    one, other = graphed(settings), graphed(settings, eager=True)
    name, added = one.parameters[-1].name, torch.zeros(())
    for trainer in (one, other):
        last = trainer.parameters[-1]
        (last.parameter if last.copy is None else last.copy).register_hook(lambda gradient: gradient + added)
    for number in range(EAGER_STEPS + 8):
        is_bad = number in (1, EAGER_STEPS + 4, EAGER_STEPS + 5)
        added.fill_(value if is_bad else 0.0)
        for trainer in (one, other):
            before = state_of(trainer)
            done = stepped(trainer, number, settings=settings)
            expected = ((name,), (), True) if is_bad else ((), (), False)
            assert (done.spoiled, done.spoiled_weights, done.skipped) == expected, number
            unchanged = [torch.equal(*pair) for pair in zip(state_of(trainer), before, strict=True)]
            assert all(unchanged) if is_bad else not any(unchanged), number
        assert all(torch.equal(*pair) for pair in zip(state_of(one), state_of(other), strict=True)), number
    assert replays(one) == [(8, 7)]


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
def test_the_schedule_of_a_checkpoint_is_asked_for_what_would_be_stale(graphed, tmp_path):
    decays = {"weight_decay_style": "linear", "start_weight_decay": 0.0, "end_weight_decay": 0.1}
    before = graphed(replace(SETTINGS, checkpoint=Checkpoint(save=str(tmp_path))))
    before.reconfigure(replace(before.config, schedule=replace(SETTINGS.schedule, **decays)))
    assert before.graphs is None
    saver = Saver(before, tmp_path)
    saver.save(TrainState(1, 0, 0))
    saver.wait()
    saver.close()
    resumed = graphed(replace(SETTINGS, checkpoint=Checkpoint(load=str(tmp_path), resume_schedule="checkpoint")))
    assert resumed.graphs is not None
    load(resumed)
    assert resumed.graphs is None


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
def test_a_checkpoint_of_graphed_steps_is_resumed_bit_for_bit(graphed, tmp_path):
    settings = replace(SETTINGS, checkpoint=Checkpoint(load=str(tmp_path), save=str(tmp_path)))
    straight = graphed(settings)
    for number in range(EAGER_STEPS + 3):
        stepped(straight, number)
    saver = Saver(straight, tmp_path)
    saver.save(TrainState(EAGER_STEPS + 3, 0, 0))
    saver.wait()
    saver.close()
    expected = [stepped(straight, number) for number in range(20, 20 + EAGER_STEPS + 3)]
    resumed = graphed(settings)
    # Its steps are graphs already when the checkpoint is loaded: loading writes to the tensors that they read.
    for number in range(EAGER_STEPS + 3):
        stepped(resumed, number + 40)
    load(resumed)
    assert [stepped(resumed, number) for number in range(20, 20 + EAGER_STEPS + 3)] == expected
    assert replays(resumed) == [(EAGER_STEPS + 6, EAGER_STEPS + 5)]


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_graphs_that_leave_too_little_memory_are_given_up(graphed, monkeypatch, dtype):
    settings = replace(SETTINGS, precision=Precision(dtype))
    trainer, other = graphed(settings), graphed(settings, eager=True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1 << 24, 1 << 30))
    for number in range(EAGER_STEPS + 2):
        if number == EAGER_STEPS:
            # As a checkpoint does. The captured passes copy the weights only in a replay, which never comes.
            for one in (*trainer.parameters, *other.parameters):
                one.local.add_(0.5)
        assert stepped(trainer, number, settings=settings) == stepped(other, number, settings=settings)
    assert replays(trainer) == []
    assert trainer.messages() == [
        "no CUDA graphs of training steps: they leave 0.0 GiB free, less than 5%; steps run eagerly"
    ]


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("after_it", [False, True], ids=["raised", "and another error at the end of the capture"])
def test_passes_that_fail_in_a_capture_leave_no_gradients(graphed, dtype, after_it):
    settings = replace(SETTINGS, precision=Precision(dtype))
    trainer, other = graphed(settings), graphed(settings, eager=True)
    computed = [one.parameter if one.copy is None else one.copy for one in trainer.parameters]
    seen = []

    def run_out(_):
        # In the second micro batch of the capture: gradients of the first and of later layers are there.
        seen.append(None)
        if len(seen) == 2 * EAGER_STEPS + 2:
            try:
                raise torch.cuda.OutOfMemoryError("CUDA out of memory")
            finally:
                if after_it:
                    raise RuntimeError("operation failed due to a previous error during capture")

    computed[len(computed) // 2].register_post_accumulate_grad_hook(run_out)
    for number in range(EAGER_STEPS + 3):
        assert stepped(trainer, number, settings=settings) == stepped(other, number, settings=settings), number
    assert replays(trainer) == []
    assert trainer.messages() == [
        "no CUDA graphs of training steps: the device does not have enough memory for them; steps run eagerly"
    ]


def test_forgotten_graphs_are_captured_again(graphed):
    trainer, other = graphed(), graphed(eager=True)
    for number in range(2 * EAGER_STEPS + 5):
        if number == EAGER_STEPS + 3:
            trainer.graphs.forget()
            assert replays(trainer) == []
        assert stepped(trainer, number) == stepped(other, number)
    assert replays(trainer) == [(2, 1)]


def test_graphs_are_freed_before_process_groups_even_if_something_refers_to_them(graphed):
    trainer = graphed()
    for number in range(EAGER_STEPS + 3):
        stepped(trainer, number)
    (kept,) = trainer.graphs._graphs.values()  # as the traceback of an error may
    assert kept.passes.calls
    assert kept.update.calls
    trainer.close()
    assert (kept.passes.calls, kept.update.calls, replays(trainer)) == ([], [], [])


def test_what_would_be_stale_in_a_graph_is_refused(monkeypatch):
    def reason(**changed):
        return step_graph.why_not(replace(SETTINGS, **changed), replace(ALONE, device=CUDA))

    schedule = replace(SETTINGS.schedule, weight_decay_style="linear", start_weight_decay=0.0, end_weight_decay=0.1)
    assert reason() == ""
    assert reason(precision=Precision("fp16", loss_scale=LossScale())) == "the loss scale of fp16"
    assert reason(schedule=schedule) == "a weight decay that changes"
    assert reason(optimizer=replace(SETTINGS.optimizer, kind="sgd")) == "the optimizer sgd"
    two = vars(config(SETTINGS.model, micro=4, data=2))
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert reason(**two) == "several hosts"  # srun alone sets WORLD_SIZE at most
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert reason(**two) == ""
    sharded = vars(config(SETTINGS.model, micro=4, data=2, zero_stage=1))
    for version, refusal in (("2.10.0", "ZeRO with torch before 2.11"), ("2.11.0+cu128", ""), ("2.13.0a0", "")):
        monkeypatch.setattr(torch, "__version__", version)
        assert (
            step_graph.why_not(replace(SETTINGS, **sharded), replace(ALONE, device=CUDA, parallel=sharded["parallel"]))
            == refusal
        )
    dropout = replace(SETTINGS.model, hidden_dropout=0.1)
    assert reason(**vars(config(dropout, tensor=2))) == "dropout of tensor-parallel ranks"
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    assert reason(**two) == "several hosts"
