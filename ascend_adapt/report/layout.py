"""Layout of ranks: each rank's pipeline stage, data-parallel rank and tensor-parallel rank."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ascend_adapt.whole_numbers import whole_number


@dataclass(frozen=True)
class Layout:
    """Parallel sizes. Rank = (pipeline * data ranks + data) * tensor ranks + tensor.

    The native trainer, Megatron-LM and DeepSpeed's pipeline number their ranks this way.
    """

    tensor: int
    pipeline: int
    data: int

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.tensor * self.pipeline * self.data

    def rank(self, pipeline: int, data: int, tensor: int) -> int:
        """Return the rank at a position."""
        return (pipeline * self.data + data) * self.tensor + tensor

    def __str__(self) -> str:
        return f"data {self.data} x pipeline {self.pipeline} x tensor {self.tensor}"


def of_native(config: Mapping[str, Any]) -> Layout | None:
    """Return the layout in a native run's configuration, or None if the configuration has no layout."""
    parallel = config.get("parallel")
    if not isinstance(parallel, Mapping):
        return None
    return Layout(*(_size([parallel.get(name)]) for name in ("tensor", "pipeline", "data")))


def of_program(arguments: Mapping[str, str], sizes: Mapping[str, int], ranks: int) -> Layout | None:
    """Return the layout that a program printed, or None if it printed no layout or uses other axes."""
    tensor = _size(
        [
            *(sizes.get(name) for name in ("tensor-model-parallel", "model-parallel")),
            *(arguments.get(name) for name in ("tensor_model_parallel_size", "model_parallel_size")),
        ]
    )
    pipeline = _size(
        [
            sizes.get("pipeline-model-parallel"),
            *(arguments.get(name) for name in ("pipeline_model_parallel_size", "pipe_parallel_size")),
        ]
    )
    if not sizes and not {"tensor_model_parallel_size", "model_parallel_size"} & arguments.keys():
        return None
    data = _size([sizes.get("data-parallel"), ranks // (tensor * pipeline)])
    return Layout(tensor, pipeline, data) if tensor * pipeline * data == ranks else None


def _size(stated: Iterable[Any]) -> int:
    """Return the first number that is given, else 1. GPT-NeoX's 0 pipeline stages count as one."""
    numbers = (whole_number(str(one)) for one in stated)
    return next((max(number, 1) for number in numbers if number is not None), 1)
