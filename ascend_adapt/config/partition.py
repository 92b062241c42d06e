"""Partition of layers into pipeline stages, and vocabulary padding for tensor parallelism."""

from __future__ import annotations

from ascend_adapt.config.checks import at_least, divides
from ascend_adapt.errors import ConfigError


def even_stages(num_layers: int, pipeline: int, virtual_stages: int = 1) -> tuple[int, ...]:
    """Layers of each pipeline stage, the same number in every stage, as in Megatron.

    Raises:
        ConfigError: the layers cannot be divided evenly.
    """
    at_least("virtual stages", virtual_stages, 1)
    stages = pipeline * virtual_stages
    divides("num_layers", num_layers, "pipeline stages", stages)
    return (num_layers // stages,) * stages


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


def padded(vocab_size: int, multiple: int, tensor: int) -> int:
    """Padded vocabulary size: ``vocab_size`` rounded up to a multiple of ``multiple`` * ``tensor``.

    Raises:
        ConfigError: ``multiple`` is below 1.
    """
    at_least("multiple of the padded vocabulary", multiple, 1)
    step = multiple * tensor
    return -(-vocab_size // step) * step
