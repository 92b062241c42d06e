"""Partition of layers into pipeline stages, and vocabulary padding for tensor parallelism."""

from __future__ import annotations

from ascend_adapt.config.checks import at_least, divides
from ascend_adapt.errors import ConfigError


def even_stages(num_layers: int, pipeline: int) -> tuple[int, ...]:
    """Layers of each pipeline stage, the same number in every stage.

    Raises:
        ConfigError: the layers cannot be divided evenly.
    """
    divides("num_layers", num_layers, "pipeline stages", pipeline)
    return (num_layers // pipeline,) * pipeline


def balanced_stages(num_layers: int, pipeline: int) -> tuple[int, ...]:
    """Layers of each pipeline stage; if they do not divide evenly, the first stages have one more.

    Equal to DeepSpeed 0.19.8 runtime/utils.py partition_balanced with the same weight for every layer.

    Raises:
        ConfigError: there are more stages than layers.
    """
    if num_layers < pipeline:
        raise ConfigError(
            f"num_layers: {num_layers}, expected at least one layer for each of {pipeline} stages — add layers"
        )
    each, more = divmod(num_layers, pipeline)
    return (each + 1,) * more + (each,) * (pipeline - more)


def uneven_ranks(num_layers: int, pipeline: int, first: int | None, last: int | None) -> tuple[int, ...]:
    """Layers of each pipeline rank: ``first`` and ``last`` on these ranks if given, the rest divided evenly.

    They are Megatron-core's --decoder-first-pipeline-num-layers and --decoder-last-pipeline-num-layers.

    Raises:
        ConfigError: a number is below 1, or the remaining layers cannot be divided evenly over the remaining ranks.
    """
    given = {"--decoder-first-pipeline-num-layers": first, "--decoder-last-pipeline-num-layers": last}
    fixed = {name: layers for name, layers in given.items() if layers is not None}
    for name, layers in fixed.items():
        at_least(name, layers, 1)
    rest, ranks = num_layers - sum(fixed.values()), pipeline - len(fixed)
    middle = rest // ranks if ranks > 0 else 0
    if ranks < 0 or middle * ranks != rest or (ranks and middle < 1):
        stated = ", ".join(f"{name} {layers}" for name, layers in fixed.items())
        raise ConfigError(
            f"{stated}: {rest} of {num_layers} layers remain for the other {ranks} of {pipeline} pipeline stages, "
            "expected the same number for each, at least 1 — change one of them"
        )
    return (*(() if first is None else (first,)), *(middle,) * ranks, *(() if last is None else (last,)))


def padded(vocab_size: int, multiple: int, tensor: int) -> int:
    """Padded vocabulary size: ``vocab_size`` rounded up to a multiple of ``multiple`` * ``tensor``.

    Raises:
        ConfigError: ``multiple`` is below 1.
    """
    at_least("multiple of the padded vocabulary", multiple, 1)
    step = multiple * tensor
    return -(-vocab_size // step) * step
