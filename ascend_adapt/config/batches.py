"""Batch sizes: global = micro x accumulation x data-parallel size, and batch size ramp-up."""

from __future__ import annotations

from ascend_adapt.config.train_config import Batch, TrainConfig
from ascend_adapt.errors import ConfigError


def resolve_batch(data: int, total: int | None, micro: int | None, accumulation: int | None) -> Batch:
    """Resolve the batch sizes for ``data`` data-parallel ranks, given any two of total, micro and accumulation.

    Given only ``total`` or ``micro``, accumulation is 1, as in DeepSpeed and GPT-NeoX.

    Raises:
        ConfigError: neither ``total`` nor ``micro`` is given, or the sizes do not divide evenly.
    """
    for name, value in (("train batch", total), ("micro batch", micro), ("accumulation", accumulation)):
        if value is not None and value < 1:
            raise ConfigError(f"{name}: {value}, expected at least 1 — correct it")
    if total is None and micro is None:
        raise ConfigError("batch: no size is given, expected a micro batch size or a global batch size — add one")
    if total is None:
        total = (micro or 0) * (accumulation or 1) * data
    if micro is None:
        passes = accumulation or 1
        micro = _divided(total, data * passes, f"data-parallel size {data} x accumulation {passes}")
    if accumulation is None:
        accumulation = _divided(total, micro * data, f"micro batch {micro} x data-parallel size {data}")
    if total != micro * accumulation * data:
        raise ConfigError(
            f"train batch: {total}, expected micro batch {micro} x accumulation {accumulation} x "
            f"data-parallel size {data} = {micro * accumulation * data} — correct one of them"
        )
    return Batch(micro, accumulation, total)


def _divided(total: int, by: int, what: str) -> int:
    if total % by:
        raise ConfigError(f"train batch: {total}, expected a multiple of {what} = {by} — change one of them")
    return total // by


def batch_at(batch: Batch, data: int, consumed_samples: int) -> tuple[int, int]:
    """Global batch size and accumulation of the step that starts after ``consumed_samples``, on ``data`` ranks.

    During a ramp-up (start, increment, samples), the batch size grows by the increment at equal intervals of samples.
    Source: Megatron-LM@v2.5 megatron/microbatches.py.
    """
    if batch.rampup is None:
        return batch.total, batch.accumulation
    first, increment, over = batch.rampup
    steps = (batch.total - first) // increment
    total = batch.total
    if steps and over and consumed_samples <= over:
        total = min(first + int(consumed_samples / (over / steps)) * increment, batch.total)
    return total, total // (batch.micro * data)


def check_rampup(batch: Batch, data: int) -> None:
    """Check that every batch size of a ramp-up is a multiple of micro batch x data-parallel size.

    Raises:
        ConfigError: a batch size is not a multiple, or the increments do not end at the final batch size.
    """
    if batch.rampup is None:
        return
    first, increment, over = batch.rampup
    step = batch.micro * data
    if first < 1 or increment < 1 or over < 0 or (batch.total - first) % increment or batch.total < first:
        raise ConfigError(
            f"batch ramp-up: from {first} by {increment} to {batch.total}, expected increments that end exactly at "
            f"{batch.total} — correct them"
        )
    for name, value in (("first size", first), ("increment", increment)):
        if value % step:
            raise ConfigError(
                f"batch ramp-up: {name} {value}, expected a multiple of micro batch {batch.micro} x "
                f"data-parallel size {data} = {step} — change one of them"
            )


def samples_from(batch: Batch, data: int, consumed_samples: int, iterations: int) -> int:
    """Number of samples that the next ``iterations`` steps consume after ``consumed_samples``."""
    consumed = consumed_samples
    while iterations and batch.rampup is not None and consumed <= batch.rampup[2]:
        consumed += batch_at(batch, data, consumed)[0]
        iterations -= 1
    return consumed - consumed_samples + iterations * batch.total


def iterations_for(batch: Batch, data: int, samples: int) -> int:
    """Number of full steps in ``samples`` samples.

    Source: Megatron-LM@v2.5 megatron/training.py update_train_iters.
    """
    consumed = iterations = 0
    if batch.rampup is not None:
        while consumed <= batch.rampup[2] and consumed < samples:
            consumed += batch_at(batch, data, consumed)[0]
            iterations += 1
    return iterations + max(samples - consumed, 0) // batch.total


def samples_wanted(config: TrainConfig) -> tuple[int, int, int]:
    """Numbers of train, valid and test samples that the run requests; the sample order depends on them."""
    train = config.train_samples or config.iterations * config.batch.total
    if not config.eval_interval:
        return train, 0, 0
    evaluations = config.iterations // config.eval_interval + 1
    each = config.eval_iterations * config.batch.total
    return train, evaluations * each, each
