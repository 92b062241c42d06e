"""Checkpoints are complete or absent, and a run resumes from the latest valid one."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import signal
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from native.small_models import GPT2, batch, config
from native.test_loop import RecordingLog, run

from ascend_adapt.config.train_config import Checkpoint, LossScale, Precision
from ascend_adapt.errors import TrainingError
from ascend_adapt.native import loop
from ascend_adapt.native.checkpoint import folder as checkpoint_folder
from ascend_adapt.native.checkpoint.folder import LATEST, PROGRESS, SUMS, CheckpointFolder
from ascend_adapt.native.checkpoint.load import load
from ascend_adapt.native.checkpoint.save import Saver
from ascend_adapt.native.checkpoint.state import TrainState
from ascend_adapt.native.parallel import mesh as meshes
from ascend_adapt.native.step.trainer import Trainer

ALONE = meshes.single(torch.device("cpu"))


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGES = {
    "a bit of the numbers": lambda folder: flip(folder / "__0_0.distcp"),
    "a bit of the metadata": lambda folder: flip(folder / ".metadata"),
    "a bit of the progress": lambda folder: flip(folder / PROGRESS),
    "cut short": lambda folder: os.truncate(folder / "__0_0.distcp", 1000),
    "a file is missing": lambda folder: (folder / ".metadata").unlink(),
    "no sums": lambda folder: (folder / SUMS).unlink(),
    "sums that are none": lambda folder: (folder / SUMS).write_text("?"),
    "gone": lambda folder: folder.rename(folder.with_name("elsewhere")),
}


@pytest.fixture(scope="module", autouse=True)
def process_group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder with checkpoints 2 and 4; number N's parameters are all N."""
    folder = tmp_path_factory.mktemp("saved")
    trainer = filled(Checkpoint(save=str(folder)), 0)
    saver = Saver(trainer, folder)
    for iteration in (2, 4):
        fill(trainer, iteration)
        saver.save(TrainState(iteration, 8 * iteration, iteration))
    saver.wait()
    return folder


def filled(checkpoint, number, **changes):
    trainer = Trainer(replace(config(), checkpoint=checkpoint, **changes), ALONE)
    fill(trainer, number)
    return trainer


def fill(trainer, number):
    for one in trainer.parameters:
        one.local.fill_(number)


def numbers(trainer):
    return {float(number) for one in trainer.parameters for number in one.local.unique()}


def test_too_many_open_files_is_no_damage(tmp_path):
    """Else a valid checkpoint would be passed over for an older one."""
    (tmp_path / "part").write_bytes(b"weights")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        with pytest.raises(OSError, match=r"Too many open files \(this process may have 3"):
            checkpoint_folder.damage(tmp_path, {"part": ""}, ["part"])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_one_is_passed_over(saved, tmp_path, damage):
    folder = tmp_path / "copy"
    os.system(f"cp -r {saved} {folder}")
    DAMAGES[damage](folder / "iter_0000004")
    trainer = filled(Checkpoint(load=str(folder)), 7)
    progress, messages = load(trainer)
    assert progress == TrainState(2, 16, 2)
    assert numbers(trainer) == {2.0}
    assert messages[0].startswith(f"warning: {folder / 'iter_0000004'} is damaged (")
    assert messages[1] == f"resuming from {folder / 'iter_0000002'}, iteration 2"
    DAMAGES[damage](folder / "iter_0000002") if damage != "gone" else (folder / "iter_0000002").rename(folder / "gone")
    with pytest.raises(TrainingError, match="no valid checkpoint, expected one .* — restore a checkpoint"):
        load(filled(Checkpoint(load=str(folder)), 7))


def test_sums_are_those_of_sha256sum(saved):
    assert os.system(f"cd {saved / 'iter_0000004'} && sha256sum --check --quiet --strict {SUMS}") == 0


def test_a_tracker_is_not_needed(saved, tmp_path):
    folder = tmp_path / "copy"
    os.system(f"cp -r {saved} {folder}")
    (folder / LATEST).unlink()
    assert load(filled(Checkpoint(load=str(folder)), 7))[0].iteration == 4


@pytest.mark.parametrize("named", [b"", b"\0\0", b"\xff\xfe", b"release"])
def test_a_tracker_that_names_nothing_is_passed_over(saved, tmp_path, named):
    folder = tmp_path / "copy"
    shutil.copytree(saved, folder)
    (folder / LATEST).write_bytes(named)
    progress, messages = load(filled(Checkpoint(load=str(folder)), 7))
    assert progress.iteration == 4
    assert messages[0].startswith(f"warning: {folder / LATEST} names no checkpoint (")
    for one in folder.glob("iter_*"):
        shutil.rmtree(one)
    with pytest.raises(TrainingError, match=f"^{folder}: holds {LATEST}, but not the checkpoint that it refers to, "):
        load(filled(Checkpoint(load=str(folder)), 7))


def test_a_loss_scale_is_restored_into_a_dynamic_scale(saved):
    precision = Precision("fp16", loss_scale=LossScale(initial=256.0))
    settings = replace(config(), checkpoint=Checkpoint(load=str(saved)), precision=precision)
    trainer = Trainer(settings, meshes.build(settings.parallel, torch.device("cpu")))
    assert load(trainer)[1][1:] == [
        "the loss scale starts at 256, because no loss scale was loaded",
        "precision.dtype: fp32 -> fp16, the configured value is used",
    ]
    assert trainer.scaler.scale == 256.0


@contextlib.contextmanager
def no_room():
    """A file of more than 20,000 bytes cannot be written: the kernel reports it, as it does a full disk.

    Never around a whole test: the file that pytest's own output goes to is larger.
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_is_an_error_that_loses_nothing(saved, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(saved, folder)
    trainer = filled(Checkpoint(save=str(folder), load=str(folder), keep_last=1), 7)
    saver = Saver(trainer, folder)
    with no_room():
        saver.save(TrainState(6, 48, 6))
        with pytest.raises(TrainingError, match=r"iter_0000006: not saved \(rank 0: .*, the latest complete .* 4 — "):
            saver.wait()
    assert sorted(one.name for one in folder.iterdir()) == ["iter_0000002", "iter_0000004", LATEST]
    assert load(trainer)[0].iteration == 4


def test_training_continues_while_a_checkpoint_is_written_unchanged(tmp_path, monkeypatch):
    trained = threading.Event()
    save = dcp.save

    def patient(*given, **named):
        assert trained.wait(60)
        return save(*given, **named)

    monkeypatch.setattr(dcp, "save", patient)
    settings = replace(config(), checkpoint=Checkpoint(save=str(tmp_path)))
    trainer = Trainer(settings, ALONE)
    trainer.step(batch(0, settings), 8, 3e-3, 0.1)
    saver = Saver(trainer, tmp_path)
    saver.save(TrainState(1, 8, 1))
    then = [trainer.step(batch(number, settings), 8, 3e-3, 0.1).loss for number in (1, 2)]
    saver.check()
    assert CheckpointFolder(tmp_path).saved() == []
    trained.set()
    saver.wait()
    other = Trainer(replace(settings, checkpoint=Checkpoint(load=str(tmp_path))), ALONE)
    assert load(other)[0] == TrainState(1, 8, 1)
    assert [other.step(batch(number, settings), 8, 3e-3, 0.1).loss for number in (1, 2)] == then


def test_only_what_is_ours_is_ever_removed(tmp_path):
    for other in ("iter_0000001", "iter_0000005"):
        (tmp_path / other / "mp_rank_00").mkdir(parents=True)
    (tmp_path / ".saving-iter_0000002").mkdir()
    trainer = filled(Checkpoint(save=str(tmp_path), keep_last=2), 1)
    saver = Saver(trainer, tmp_path)
    for iteration in (2, 9, 3, 4):
        # 9 was saved by a run that was then resumed from 2.
        saver.save(TrainState(iteration, iteration, iteration))
    saver.wait()
    names = sorted(one.name for one in tmp_path.iterdir())
    assert names == ["iter_0000001", "iter_0000003", "iter_0000004", "iter_0000005", "iter_0000009", LATEST]
    saver.save(TrainState(5, 5, 5))
    with pytest.raises(TrainingError, match="iter_0000005 exists and is not a native checkpoint"):
        saver.wait()
    assert (tmp_path / "iter_0000005" / "mp_rank_00").exists()


class Killed(BaseException):
    """What nothing catches, as nothing catches SIGKILL."""


CHANGES = ((Path, "rename"), (Path, "replace"), (Path, "mkdir"), (Path, "open"), (shutil, "rmtree"), (os, "fsync"))


def kill_before(monkeypatch, number):
    """End what is being saved before it changes the disk for that time; return the changes that were made."""
    made = []

    def instead(name, change):
        def changed(*given, **named):
            if threading.current_thread() is not threading.main_thread():
                if len(made) == number:
                    raise Killed
                made.append(name)
            return change(*given, **named)

        return changed

    for owner, name in CHANGES:
        monkeypatch.setattr(owner, name, instead(name, getattr(owner, name)))
    return made


def test_a_save_that_is_ended_before_any_of_its_changes_loses_itself_at_most(tmp_path, monkeypatch):
    trainer = filled(Checkpoint(save=str(tmp_path), load=str(tmp_path), keep_last=2), 1)
    iteration, outcomes = 1, []
    for number in range(200):
        saver = Saver(trainer, tmp_path)
        with monkeypatch.context() as patched:
            made = kill_before(patched, number)
            try:
                saver.save(TrainState(iteration, iteration, iteration))
                saver.wait()
                ended = False
            except Killed:
                ended = True
        other = filled(trainer.config.checkpoint, 0)
        resumed = load(other)[0].iteration
        assert resumed in ((iteration - 1, iteration) if ended else (iteration,)), made
        assert resumed == 0 or numbers(other) == {float(resumed)}
        outcomes.append(resumed == iteration)
        if not ended:
            break
        iteration = resumed + 1
        fill(trainer, iteration)
    assert {"rename", "replace", "rmtree", "fsync"} <= set(made)
    # Ended early it is lost, ended late it is not, and the last of them was not ended.
    assert outcomes == sorted(outcomes)
    assert 2 <= sum(outcomes) < len(outcomes) < 200


class Interrupted(RecordingLog):
    """Sends this process a signal after its third step."""

    def __init__(self, number=signal.SIGTERM):
        super().__init__()
        self.number = number

    def step(self, metrics):
        super().step(metrics)
        if metrics.iteration == 3:
            # To this thread: one to the process may be taken by another thread, and noticed a step later.
            signal.raise_signal(self.number)


def test_sigterm_saves_and_ends_and_the_run_resumes_bit_for_bit(settings, tmp_path):
    settings = replace(settings, model=replace(GPT2, hidden_dropout=0.1, attention_dropout=0.1))
    whole = run(settings)
    # A SIGTERM from outside, such as timeout(1)'s, ends this run early too.
    assert len(whole.steps) == settings.iterations, whole.said[-1]
    settings = replace(settings, checkpoint=Checkpoint(save=str(tmp_path / "saved"), load=str(tmp_path / "saved")))
    first, before = Interrupted(), signal.getsignal(signal.SIGTERM)
    loop.train(settings, "unused", first)
    assert signal.getsignal(signal.SIGTERM) is before
    assert len(first.steps) == 4
    assert first.said[-1] == "stopping after iteration 4, as requested by a signal or the time limit"
    then = run(settings)
    assert then.said[0] == f"resuming from {tmp_path / 'saved' / 'iter_0000004'}, iteration 4"
    assert first.losses + then.losses == whole.losses


@pytest.mark.parametrize(("exit_signals", "steps"), [((), 6), (("SIGUSR1",), 4)], ids=["continues", "ends"])
def test_sigusr1_saves(settings, tmp_path, exit_signals, steps):
    checkpoint = Checkpoint(save=str(tmp_path / "saved"), interval=100)
    log = Interrupted(signal.SIGUSR1)
    loop.train(replace(settings, iterations=6, checkpoint=checkpoint, exit_signals=exit_signals), "unused", log)
    assert len(log.steps) == steps
    assert [line for line in log.said if line.startswith("saving")][0] == f"saving {tmp_path}/saved/iter_0000004"
    asked = "save requested by a signal after iteration 4: the run continues"
    assert (asked in log.said) == (not exit_signals)


def test_what_changes_the_order_of_samples_is_named(saved):
    checkpoint = Checkpoint(load=str(saved))
    made = config()
    assert load(filled(checkpoint, 7))[1][1:] == []
    messages = load(filled(checkpoint, 7, data=replace(made.data, seed=4), iterations=40))[1]
    assert messages[1:] == [
        "warning: the order of samples changed, so some are repeated or skipped: data.seed was 1234, is 4; "
        "number of samples was 160, is 320"
    ]
    messages = load(filled(checkpoint, 7, data=replace(made.data, weight_by_documents=0.3)))[1]
    assert messages[1].endswith("some are repeated or skipped: data.weight_by_documents was None, is 0.3")


def test_another_model_is_never_resumed_silently(saved, tmp_path):
    checkpoint = Checkpoint(load=str(saved))
    messages = load(filled(checkpoint, 7, model=replace(GPT2, num_heads=2, num_query_groups=2, head_dim=16)))[1]
    assert messages[1:] == [
        "warning: the model differs from the saved one: num_heads was 4, is 2; num_query_groups was 4, is 2; "
        "head_dim was 8, is 16"
    ]
    assert load(filled(checkpoint, 7, model=replace(GPT2, hidden_dropout=0.5)))[1][1:] == []
    fewer = {"model": replace(GPT2, num_layers=2), "parallel": replace(config().parallel, stages=(2,))}
    with pytest.raises(
        TrainingError, match=r"has model\.layers\.2\..* and 23 other parameters that this model does no"
    ):
        load(filled(checkpoint, 7, **fewer))
    messages = load(filled(replace(checkpoint, finetune=True), 7, **fewer))[1]
    assert messages[1] == "warning: the model differs from the saved one: num_layers was 4, is 2"


def test_a_schedule_that_counts_in_another_unit_continues(saved):
    made, checkpoint = config(), Checkpoint(load=str(saved))
    other = {"samples": "iterations", "iterations": "samples"}[made.schedule.unit]
    checkpoint = replace(checkpoint, resume_schedule="override")
    progress, messages = load(filled(checkpoint, 7, schedule=replace(made.schedule, unit=other)))
    assert (progress.iteration, progress.consumed_samples) == (4, 32)
    assert progress.scheduled == {"samples": 32, "iterations": 4}[other]
    assert messages[1:] == [
        f"schedule.unit: {made.schedule.unit} -> {other}, the configured value is used",
        f"the schedule continues from {progress.scheduled} {other}; the checkpoint counted it in {made.schedule.unit}",
    ]


CHANGED = {"lr": 1e-2, "decay": 40.0, "style": "linear"}
DIFFERENCES = [
    ("schedule.lr", "0.003", "0.01"),
    ("schedule.style", "constant", "linear"),
    ("schedule.decay", "20.0", "40.0"),
    ("optimizer.weight_decay", "0.1", "0.2"),
]


def with_another_schedule(saved, policy, **more):
    """A run to resume with another learning rate, horizon, decay style and weight decay, and another epsilon."""
    made = config()
    return filled(
        Checkpoint(load=str(saved), resume_schedule=policy, **more),
        7,
        schedule=replace(made.schedule, **CHANGED),
        optimizer=replace(made.optimizer, weight_decay=0.2, eps=1e-6),
    )


def test_another_schedule_is_refused_by_default(saved):
    differences = "; ".join(f"{name} was {old}, is {new}" for name, old, new in DIFFERENCES)
    with pytest.raises(TrainingError) as error:
        load(with_another_schedule(saved, "match"))
    assert str(error.value) == (
        f"{saved / 'iter_0000004'}: {differences}; expected the same schedule — restore the values, or resume with "
        "--override-opt_param-scheduler (new values) or --use-checkpoint-opt_param-scheduler (values of the "
        "checkpoint)"
    )


@pytest.mark.parametrize(("policy", "used"), [("override", "configured"), ("checkpoint", "checkpoint's")])
def test_another_schedule_is_logged_value_by_value(saved, policy, used):
    trainer = with_another_schedule(saved, policy)
    messages = load(trainer)[1]
    assert messages[1:] == [
        *(f"{name}: {old} -> {new}, the {used} value is used" for name, old, new in DIFFERENCES),
        "optimizer.eps: 1e-08 -> 1e-06, the configured value is used",
    ]
    schedule = {"override": replace(config().schedule, **CHANGED), "checkpoint": config().schedule}[policy]
    assert trainer.config.schedule == schedule
    assert trainer.config.optimizer.weight_decay == {"override": 0.2, "checkpoint": 0.1}[policy]


def test_a_finetune_or_a_new_optimizer_may_have_another_schedule(saved):
    assert len(load(with_another_schedule(saved, "match", finetune=True))[1]) == 1
    messages = load(with_another_schedule(saved, "checkpoint", load_optimizer=False))[1]
    assert "schedule.lr: 0.003 -> 0.01, the configured value is used" in messages


def test_generators_are_those_of_the_same_ranks_only(saved, tmp_path):
    """Ranks that share a layer must draw alike, and those of another mesh did not."""
    folder = tmp_path / "copy"
    os.system(f"cp -r {saved} {folder}")
    os.system(f"cd {folder} && rm -r iter_0000002")
    progress = json.loads((folder / "iter_0000004" / PROGRESS).read_text())
    progress["config"]["parallel"]["data"] = 2
    (folder / "iter_0000004" / PROGRESS).write_text(json.dumps(progress))
    os.system(f"cd {folder / 'iter_0000004'} && sed -i /{PROGRESS}/d {SUMS} && sha256sum {PROGRESS} >> {SUMS}")
    drawn = []
    model = replace(GPT2, hidden_dropout=0.1)
    for source in (saved, folder):
        trainer = filled(Checkpoint(load=str(source)), 7, model=model)
        drawn.append((torch.rand(1), load(trainer)[1][1:], torch.rand(1)))
    assert [messages for _, messages, _ in drawn] == [
        [],
        [
            "dropout masks differ from an uninterrupted run: the parallel layout differs, or no generator state was "
            "loaded"
        ],
    ]
    first, (again, _, _) = drawn[0][2], drawn[1]
    assert drawn[1][2] not in (first, again)
