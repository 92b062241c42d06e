"""Learning rate and weight decay schedule of a Megatron command line.

Sources: Megatron-LM@v2.5 megatron/arguments.py, @core_v0.9.0 megatron/training/arguments.py (validate_args) and
megatron/core/optimizer_param_scheduler.py.
"""

from __future__ import annotations

from ascend_adapt.config.train_config import Batch, Schedule
from ascend_adapt.errors import ConfigError
from ascend_adapt.recipes.options import Options


def read_schedule(options: Options, batch: Batch, iterations: int, samples: int | None) -> Schedule:
    """Return the schedule of a run of ``iterations`` iterations; it counts samples if ``samples`` is given.

    Raises:
        ConfigError: a length is in the other unit, or the length or an end point of a decay is missing.
    """
    if samples is None:
        decay = options("lr_decay_iters", iterations) * batch.total
        warmup = options("lr_warmup_iters", 0) * batch.total
        wsd = options("lr_wsd_decay_iters", 0) * batch.total
        misplaced = ("lr_decay_samples", "lr_warmup_samples", "lr_wsd_decay_samples")
    else:
        decay = options("lr_decay_samples", samples)
        warmup = options("lr_warmup_samples", 0)
        wsd = options("lr_wsd_decay_samples", 0)
        misplaced = ("lr_decay_iters", "lr_warmup_iters", "lr_wsd_decay_iters")
    for name in misplaced:
        if options(name):
            counted = "iterations" if samples is None else "samples"
            raise ConfigError(
                f"{name}: {options(name)}, but the length of this run is in {counted} — specify it in {counted}"
            )
    fraction = options("lr_warmup_fraction")
    if fraction is not None:
        if warmup:
            raise ConfigError("--lr-warmup-fraction: given together with the length of a warmup — pass one of them")
        warmup = fraction * decay
    if options("lr_decay_style") == "WSD" and not wsd:
        raise ConfigError(
            "--lr-decay-style: WSD without the length of its decay — pass --lr-wsd-decay-iters or "
            "--lr-wsd-decay-samples"
        )
    _check_weight_decays(options)
    return Schedule(
        dialect="megatron",
        lr=options.required("lr"),
        min_lr=options("min_lr"),
        style=options("lr_decay_style"),
        unit="samples",
        warmup=warmup,
        decay=decay,
        init_lr=options("lr_warmup_init", 0.0),
        wsd_style=options("lr_wsd_decay_style", "exponential"),
        wsd_decay=wsd,
        start_weight_decay=options("start_weight_decay"),
        end_weight_decay=options("end_weight_decay"),
        weight_decay_style=options("weight_decay_incr_style", "constant"),
        weight_decay_over=float(samples or iterations * batch.total),
    )


def _check_weight_decays(options: Options) -> None:
    """Check that start and end are given for an increasing weight decay, and for no other."""
    style = options("weight_decay_incr_style", "constant")
    start, end = options("start_weight_decay"), options("end_weight_decay")
    if style == "constant":
        if start is not None or end is not None:
            raise ConfigError(
                "--start-weight-decay, --end-weight-decay: given with a constant weight decay, expected "
                "--weight-decay-incr-style linear or cosine — add it, or leave them out"
            )
    elif start is None or end is None:
        raise ConfigError(
            f"--weight-decay-incr-style: {style} without --start-weight-decay and --end-weight-decay — add both"
        )
    elif not 0 <= start <= end:
        raise ConfigError(f"--end-weight-decay: {end}, expected at least --start-weight-decay {start} — correct one")
