"""ComputeWeights compared with FSDP, the reference for casting, sharding and reducing."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from native.conftest import LOSS_GROWTH, NORM_GROWTH
from native.small_models import GPT2, LENGTH, MODELS, Case, batch, config, fused_products, place_by_fsdp, train
from native.training_bounds import apart

from ascend_adapt.config.train_config import LossScale, Precision
from ascend_adapt.native.parallel import mesh as meshes
from ascend_adapt.native.step import data_parallel, trainer
from ascend_adapt.native.step.trainer import Trainer


@pytest.fixture
def mesh():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield meshes.build(config(GPT2).parallel, torch.device("cpu"))
    dist.destroy_process_group()


@pytest.fixture
def by_fsdp(monkeypatch):
    """Call it: from then on FSDP holds one rank's parameters too."""

    return lambda: monkeypatch.setattr(trainer, "place", place_by_fsdp)


def trained(model, precision, mesh, **sizes):
    settings = replace(config(MODELS[model], **sizes), precision=precision)
    made = Trainer(settings, replace(mesh, parallel=settings.parallel))
    pieces = settings.batch.accumulation
    steps = [made.step(batch(number, settings), pieces, 3e-3, 0.1) for number in range(2)]
    return made, [(one.loss, one.grad_norm, one.skipped) for one in steps], made.evaluate(batch(9, settings), pieces)


@pytest.mark.parametrize(
    ("model", "precision", "sizes"),
    [
        ("neox", Precision("bf16"), {"recompute": "full", "micro": 4}),
        ("gated", Precision("bf16", reduce="bf16"), {"micro": 4}),
        ("gpt_j_tied", Precision("bf16", reduce="bf16"), {"zero_stage": 2, "micro": 4}),
        ("gpt2", Precision("fp16", loss_scale=LossScale(initial=2.0**12, hysteresis=1)), {"micro": 8}),
        ("gpt2", Precision("bf16"), {"zero_stage": 3, "micro": 4}),
        ("gated", Precision("bf16"), {"zero_stage": 3, "micro": 4, "recompute": "full", "recompute_layers": 3}),
    ],
    ids=["recomputed", "sums in bf16", "sums in bf16, zero-2", "fp16", "zero-3", "zero-3, recomputed by threes"],
)
def test_no_bit_differs_from_fsdp(mesh, by_fsdp, model, precision, sizes):
    ours, *numbers = trained(model, precision, mesh, **sizes)
    by_fsdp()
    theirs, *others = trained(model, precision, mesh, **sizes)
    assert isinstance(theirs.decoders[0], data_parallel.FSDPModule)
    assert not isinstance(ours.decoders[0], data_parallel.FSDPModule)
    assert numbers == others
    assert not any(skipped for _, _, skipped in numbers[0])
    for one, other in zip(ours.parameters, theirs.parameters, strict=True):
        assert one.name == other.name
        assert one.local.dtype == torch.float32
        assert torch.equal(one.local, other.local), one.name


def test_the_same_steps_are_skipped(mesh, by_fsdp):
    precision = Precision("fp16", loss_scale=LossScale(initial=2.0**19, hysteresis=1))
    ours, *numbers = trained("gpt2", precision, mesh, micro=4)
    by_fsdp()
    theirs, *others = trained("gpt2", precision, mesh, micro=4)
    assert [skipped for _, _, skipped in numbers[0]] == [True, False]
    assert repr(numbers) == repr(others)  # the norm of a skipped step is NaN, which is not equal to itself
    for one, other in zip(ours.parameters, theirs.parameters, strict=True):
        assert torch.equal(one.local, other.local), one.name


def test_a_checkpoint_of_one_resumes_in_the_other(mesh, by_fsdp, tmp_path, monkeypatch):
    first = Case("", "gpt2", {"micro": 4}, steps=2, dtype="bf16")
    straight = train(replace(first, steps=4), mesh)
    train(replace(first, save=str(tmp_path / "copies")), mesh)
    by_fsdp()
    assert (
        train(replace(first, load=str(tmp_path / "copies"), save=str(tmp_path / "fsdp")), mesh).losses
        == (straight.losses[2:])
    )
    monkeypatch.undo()
    twice = train(replace(first, steps=1, load=str(tmp_path / "fsdp")), mesh)
    assert twice.losses == train(replace(first, steps=5), mesh).losses[4:]


@pytest.mark.parametrize(
    ("dtype", "zero_stage", "has_copies"),
    [("bf16", 3, True), ("bf16", 2, True), ("fp16", 3, True), ("fp32", 3, False)],
)
def test_one_rank_computes_with_copies_in_16_bits_only(mesh, dtype, zero_stage, has_copies):
    settings = replace(config(GPT2, zero_stage=zero_stage), precision=Precision(dtype))
    made = Trainer(settings, replace(mesh, parallel=settings.parallel))
    assert not isinstance(made.decoders[0], data_parallel.FSDPModule)
    assert (made.decoders[0].copies is not None) == has_copies


def test_passes_see_changed_master_weights(mesh):
    settings = replace(config(GPT2), precision=Precision("bf16"))
    made = Trainer(settings, mesh)
    before = made.evaluate(batch(0, settings), 8)
    for one in made.parameters:
        one.local.mul_(0.5)
    assert made.evaluate(batch(0, settings), 8) != before


@pytest.mark.parametrize("zero_stage", [0, 3])
def test_a_trainer_without_references_is_freed(mesh, zero_stage):
    settings = replace(config(GPT2, zero_stage=zero_stage), precision=Precision("bf16"))
    made = Trainer(settings, replace(mesh, parallel=settings.parallel))
    made.step(batch(0, settings), 8, 3e-3, 0.1)
    kept = [weakref.ref(one.parameter) for one in made.parameters]
    del made
    gc.collect()
    assert not any(one() is not None for one in kept)


ON_TWO_RANKS = [
    Case("whole, bf16", "gated", {"data": 2, "micro": 4, "recompute": "full"}, dtype="bf16"),
    Case("cut, fp32", "odd", {"data": 2, "zero_stage": 1}),
    Case("each pass summed", "odd", {"data": 2, "zero_stage": 2}, dtype="bf16", reduce="bf16"),
    Case("for each pass, bf16", "odd", {"data": 2, "zero_stage": 3}, dtype="bf16"),
    Case("cut, in the product", "gpt2", {"data": 2, "zero_stage": 1, "micro": 2}, dtype="bf16", fused=True),
    Case("each pass, in the product", "gated", {"data": 2, "zero_stage": 2, "micro": 2}, dtype="bf16", fused=True),
    Case("for each pass, in the product", "neox", {"data": 2, "zero_stage": 3}, dtype="bf16", fused=True),
    Case("uneven, in the product", "odd", {"data": 2, "zero_stage": 1, "micro": 2}, dtype="bf16", fused=True),
    Case("for each pass, fp32", "neox", {"data": 2, "zero_stage": 3, "recompute": "full"}),
]
MORE_ON_TWO_RANKS = [
    Case("whole, fp32", "odd", {"data": 2}),
    Case("cut, rows that divide", "neox", {"data": 2, "zero_stage": 1}),
    Case("cut, bf16", "odd", {"data": 2, "zero_stage": 1}, dtype="bf16"),
    Case("cut, sums in bf16", "odd", {"data": 2, "zero_stage": 1}, dtype="bf16", reduce="bf16"),
    Case("cut, sums in fp16", "gpt2", {"data": 2, "zero_stage": 1, "micro": 4}, dtype="fp16", reduce="fp16"),
]


@pytest.mark.parametrize(
    "cases",
    [ON_TWO_RANKS, pytest.param(MORE_ON_TWO_RANKS, marks=pytest.mark.every_case)],
    ids=["representative", "others"],
)
def test_no_bit_differs_from_fsdp_on_two_ranks(train_on, tmp_path, cases):
    """Where rows divide and where not, in several buckets; a checkpoint of one resumes in the other."""
    begun = [replace(case, steps=2, save=str(tmp_path / case.name)) for case in cases]
    begun += [
        replace(case, name=f"{case.name}, FSDP", save=f"{case.save} by FSDP", by_fsdp=True, fused=False)
        for case in begun
    ]
    # Each resumes from the checkpoint of the other; what is saved does not depend on how gradients are summed.
    resumed = [
        replace(
            case,
            name=f"resumed: {case.name}",
            load=f"{case.save} by FSDP" if not case.by_fsdp else case.save.removesuffix(" by FSDP"),
            save=None,
        )
        for case in begun
        if case.reduce == "fp32"
    ]
    results = train_on(2, begun + resumed)
    for case in [*begun, *resumed]:
        assert case.by_fsdp or results[case.name] == results[f"{case.name}, FSDP"], case.name
    for case in cases:
        assert not any(results[case.name].skipped), case.name
    for case in begun:
        if case.reduce == "fp32":
            assert results[f"resumed: {case.name}"].evaluated[0] == results[case.name].evaluated[1], case.name


@pytest.mark.parametrize(
    ("model", "sizes"),
    [("gpt2", {}), ("neox", {"recompute": "full"}), ("gated", {"zero_stage": 1}), ("gpt_j_tied", {"zero_stage": 2})],
)
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_accumulation_in_the_matrix_product(mesh, model, sizes, dtype):
    """On one rank ZeRO-2 accumulates nothing."""
    precision = Precision("bf16", reduce=dtype)
    expected, *numbers = trained(model, precision, mesh, micro=2, **sizes)
    with fused_products() as calls:
        found, *others = trained(model, precision, mesh, micro=2, **sizes)
    assert numbers == others
    for one, other in zip(found.parameters, expected.parameters, strict=True):
        assert torch.equal(one.local, other.local), one.name
    accumulates, layers = sizes.get("zero_stage") != 2, found.config.model.num_layers
    linears = layers * (5 if found.config.model.gated else 4)
    pieces = found.config.batch.accumulation
    assert pieces > 1
    # In each of two steps, the first micro batch writes the sum and the others add to it.
    assert calls.count(True) == accumulates * 2 * linears
    assert calls.count(False) == accumulates * 2 * linears * (pieces - 1)


def test_a_single_micro_batch_accumulates_nothing(mesh):
    with fused_products() as calls:
        made, *_ = trained("gpt2", Precision("bf16"), mesh, micro=8)
    assert made.config.batch.accumulation == 1
    assert not calls


def test_a_checkpoint_resumes_under_another_stage(train_on, tmp_path):
    """From ZeRO-1 to ZeRO-3 and back; rows do not divide, and only the rounding of sums over micro batches differs."""
    first, second = str(tmp_path / "by stage 1"), str(tmp_path / "by stage 3")
    stage = {number: {"data": 2, "zero_stage": number, "micro": 2} for number in (1, 3)}
    cases = [
        Case("straight", "odd", stage[1], steps=6),
        Case("begun", "odd", stage[1], steps=2, save=first),
        Case("stage 3", "odd", stage[3], steps=2, load=first, save=second),
        Case("stage 1 again", "odd", stage[1], steps=2, load=second),
    ]
    results = train_on(2, cases)
    straight, begun, third, again = (results[case.name] for case in cases)
    assert third.evaluated[0] == begun.evaluated[1]
    assert again.evaluated[0] == third.evaluated[1]
    losses, norms = (apart(MODELS["odd"], LENGTH, growth) for growth in (LOSS_GROWTH, NORM_GROWTH))
    assert begun.losses + third.losses + again.losses == pytest.approx(straight.losses, rel=losses)
    assert begun.norms + third.norms + again.norms == pytest.approx(straight.norms, rel=norms)
