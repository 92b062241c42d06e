"""One process: activation checkpointing, dropout, 16-bit types and step metrics."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from error_bounds import rounding
from native.conftest import one_process
from native.small_models import GPT2, LENGTH, NEOX, Case, batch, config, train
from native.training_bounds import apart

from ascend_adapt.config.memory_estimate import total_parameters
from ascend_adapt.config.train_config import Logging, LossScale, Parallel, Precision
from ascend_adapt.errors import TrainingError
from ascend_adapt.native import device as devices
from ascend_adapt.native.parallel import mesh as meshes
from ascend_adapt.native.parallel.parameters import Placed
from ascend_adapt.native.step.trainer import Trainer

ALONE = meshes.single(torch.device("cpu"))


@pytest.fixture
def process_group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize(
    "sizes",
    [
        {"recompute": "full"},
        {"recompute": "full", "recompute_layers": 3},
        {"recompute": "selective"},
    ],
    ids=["full", "by threes", "selective"],
)
def test_recomputing_changes_no_bit(sizes):
    assert train(Case("", "neox", sizes, steps=3), ALONE) == one_process("neox", steps=3)


def test_the_logged_loss_may_be_the_mean_over_tokens():
    settings = config(NEOX, micro=2)
    given = batch(0, settings)
    given["loss_mask"][:4, 3:] = 0
    given["loss_mask"][4:6] = 0
    by_tokens = Trainer(replace(settings, logging=Logging(loss_mean="tokens")), ALONE)
    decoder = by_tokens.decoders[0].eval()
    with torch.no_grad():
        logits = decoder(given["tokens"])
    each = torch.nn.functional.cross_entropy(logits.transpose(1, 2), given["labels"], reduction="none")
    mean = float((each * given["loss_mask"]).sum() / given["loss_mask"].sum())
    assert by_tokens.evaluate(given, 4) == pytest.approx(mean, rel=apart(NEOX, LENGTH))
    step = by_tokens.step(given, 4, 1e-3, 0.1)
    assert step.loss == pytest.approx(mean, rel=apart(NEOX, LENGTH))
    # How the loss is averaged for the log does not change training.
    given["loss_mask"][4:6, 0] = 1
    steps = [Trainer(replace(settings, logging=Logging(loss_mean=how)), ALONE) for how in ("tokens", "micro_batches")]
    tokens, micro_batches = (trainer.step(given, 4, 1e-3, 0.1) for trainer in steps)
    assert tokens.grad_norm == micro_batches.grad_norm
    assert tokens.loss != pytest.approx(micro_batches.loss, rel=1e-4)


@pytest.mark.parametrize("recompute", ["full", "selective"])
def test_dropout_is_the_same_when_recomputed(recompute):
    model = replace(GPT2, hidden_dropout=0.2, attention_dropout=0.2)

    def losses(how):
        settings = config(model, recompute=how)
        trainer = Trainer(settings, ALONE)
        given = batch(0, settings)
        results = [(step.loss, step.grad_norm) for step in (trainer.step(given, 8, 1e-3, 0.1) for _ in range(3))]
        assert trainer.evaluate(given, 8) == trainer.evaluate(given, 8)
        return results

    assert losses("none") == losses(recompute)
    assert losses("none")[0] != (one_process("gpt2").losses[0], one_process("gpt2").norms[0])


def test_bf16_has_fp32_master_weights(process_group):
    mesh = meshes.build(Parallel(), torch.device("cpu"))
    results = train(Case("", "neox", dtype="bf16", steps=10), mesh)
    alone = one_process("neox")
    assert results.losses == pytest.approx(alone.losses[:10], rel=3e-3)
    assert results.losses != alone.losses[:10]
    trainer = Trainer(replace(config(NEOX), precision=Precision("bf16")), mesh)
    assert {one.local.dtype for one in trainer.parameters} == {torch.float32}


@pytest.mark.parametrize(("initial", "skipped"), [(2.0**10, 0), (2.0**127, 3)])
def test_fp16_skips_what_overflows(process_group, initial, skipped):
    scale = LossScale(initial=initial, hysteresis=1)
    settings = replace(config(GPT2), precision=Precision("fp16", loss_scale=scale))
    trainer = Trainer(settings, meshes.build(Parallel(), torch.device("cpu")))
    before = [one.local.clone() for one in trainer.parameters]
    steps = [trainer.step(batch(number, settings), 8, 3e-3, 0.1) for number in range(3)]
    assert [step.skipped for step in steps] == [number < skipped for number in range(3)]
    alike = [torch.equal(one.local, old) for one, old in zip(trainer.parameters, before, strict=True)]
    assert all(alike) if skipped else not any(alike)
    if not skipped:
        assert [step.loss for step in steps] == pytest.approx(one_process("gpt2").losses[:3], rel=2e-3)
        assert [step.grad_norm for step in steps] == pytest.approx(one_process("gpt2").norms[:3], rel=2e-2)


@pytest.mark.parametrize("rule", ["megatron", "deepspeed"])
def test_a_device_that_saturates_says_so_by_its_flag_alone(process_group, monkeypatch, rule):
    """Every step overflows, from a scale of 4: weights stay as they are by both rules, DeepSpeed's ends the run."""
    monkeypatch.setattr(devices, "take_overflow", lambda device: True)
    scale = LossScale(initial=4.0, minimum=1.0, hysteresis=1, rule=rule)
    settings = replace(config(GPT2), precision=Precision("fp16", loss_scale=scale))
    trainer = Trainer(settings, meshes.build(Parallel(), torch.device("cpu")))
    before, scales = [one.local.clone() for one in trainer.parameters], []

    def step():
        step_result = trainer.step(batch(0, settings), 8, 3e-3, 0.1)
        assert step_result.skipped
        scales.append(trainer.scaler.scale)

    step()
    step()
    if rule == "megatron":
        step()
    else:
        with pytest.raises(TrainingError, match="loss scale: overflow at 1, the minimum scale"):
            step()
    assert scales == [2, 1, 1][: len(scales)]
    assert all(torch.equal(one.local, old) for one, old in zip(trainer.parameters, before, strict=True))


def test_metrics_on_request():
    settings = replace(config(GPT2), logging=Logging(log_params_norm=True, log_num_zeros=True))
    trainer = Trainer(settings, ALONE)
    norm = torch.cat([one.local.flatten() for one in trainer.parameters]).norm()
    step = trainer.step(batch(0, settings), 8, 1e-3, 0.0)
    bound = rounding(total_parameters(settings.model), torch.float32)
    assert step.params_norm == pytest.approx(float(norm), rel=bound)
    # No id of the padding is ever there: tied, its rows still get a gradient from the output layer.
    assert step.num_zeros == 0
    assert Trainer(config(GPT2), ALONE).step(batch(0, settings), 8, 1e-3, 0.0).params_norm is None


def test_every_parameter_is_trained_and_counted_once():
    settings = config(NEOX)
    trainer = Trainer(settings, ALONE)
    before = {one.name: one.local.clone() for one in trainer.parameters}
    trainer.step(batch(0, settings), 8, 1e-3, 0.0)
    assert [name for name, old in before.items() if torch.equal(local(trainer, name), old)] == []
    assert total_parameters(settings.model) == sum(one.numel() for one in before.values())
    assert len(before) == len(trainer.parameters) == len(list(trainer.decoders[0].parameters()))


def local(trainer: Trainer, name: str) -> torch.Tensor:
    found: Placed = next(one for one in trainer.parameters if one.name == name)
    return found.local
