"""Parallel sizes of a dialect's arguments, and the number of ranks that they need."""

from __future__ import annotations

import math

from ascend_adapt.errors import ConfigError
from ascend_adapt.recipes.options import Options


def tensor_and_pipeline(options: Options) -> tuple[int, int]:
    """Return the tensor- and pipeline-parallel size, read from Megatron's option names.

    Raises:
        ConfigError: a size is below 1.
    """
    tensor, pipeline = options("tensor_model_parallel_size"), options("pipeline_model_parallel_size")
    for name, value in (("--tensor-model-parallel-size", tensor), ("--pipeline-model-parallel-size", pipeline)):
        if value < 1:
            raise ConfigError(f"{name}: {value}, expected at least 1 — correct it")
    return tensor, pipeline


def check_ranks(ranks: int, sizes: dict[str, int], change: str) -> None:
    """Check that the number of ranks is a multiple of the product of the sizes; ``change`` names the option to change.

    Raises:
        ConfigError: the number of ranks is not a multiple.
    """
    product = math.prod(sizes.values())
    if ranks % product:
        factors = " x ".join(f"{name} {size}" for name, size in sizes.items())
        raise ConfigError(
            f"ranks: {ranks}, expected a multiple of {factors} = {product} — change {change} or one of the sizes"
        )
