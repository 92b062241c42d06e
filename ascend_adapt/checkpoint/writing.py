"""Writing torch.save files: the output description, shards with their own storage, and saving."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from ascend_adapt.config.model_config import Model
from ascend_adapt.config.partition import balanced_stages, uneven_ranks
from ascend_adapt.config.yaml_file import model_from_dict
from ascend_adapt.errors import CheckpointError

DESCRIPTION = "ascend_adapt_model"
"""Key of the model description in written files, next to upstream's keys."""
_FAKE = FakeTensorMode()


@dataclass(frozen=True)
class Output:
    """The checkpoint to write: ``read`` returns canonical parameters of ``model`` in ``dtype``.

    ``done`` is called with the number of bytes written.

    ``tensor`` and ``pipeline`` are the parallel sizes of the files; ``version`` is the upstream version, or None.
    ``first`` and ``last`` are the numbers of layers of the first and the last pipeline stage, None if not given.
    """

    model: Model
    read: Callable[[str], torch.Tensor]
    done: Callable[[int], None]
    dtype: torch.dtype
    tensor: int = 1
    pipeline: int = 1
    version: str | None = None
    first: int | None = None
    last: int | None = None

    def stages(self) -> list[range]:
        """Return the blocks of each pipeline stage.

        Raises:
            ConfigError: the layers cannot be divided over the stages.
        """
        layers, pipeline = self.model.num_layers, max(self.pipeline, 1)
        is_uneven = (self.first, self.last) != (None, None)
        found, begin = [], 0
        for count in (
            uneven_ranks(layers, pipeline, self.first, self.last) if is_uneven else balanced_stages(layers, pipeline)
        ):
            found.append(range(begin, begin + count))
            begin += count
        return found

    def check_sizes(self) -> None:
        """Check that the model can be split over the tensor-parallel and pipeline ranks.

        Raises:
            CheckpointError: sizes are not divisible; the message lists them all.
        """
        model, ranks = self.model, self.tensor
        sizes = {
            "heads": model.num_heads,
            "key heads": model.num_query_groups,
            "vocabulary rows": model.padded_vocab_size,
            "MLP width": model.ffn_hidden_size,
        }
        wrong = [f"{size} {name}" for name, size in sizes.items() if size % ranks]
        if wrong:
            raise CheckpointError(f"--tp {ranks}: does not divide {', '.join(wrong)} — choose another size")
        if self.pipeline > model.num_layers:
            raise CheckpointError(
                f"--pp {self.pipeline}: expected at most {model.num_layers}, the number of layers — lower it"
            )


def described(state: Any, rows: int) -> Model | None:
    """Return the model that a file written by this package describes, or None for other files."""
    if not isinstance(state, dict) or DESCRIPTION not in state:
        return None
    return model_from_dict({**state[DESCRIPTION], "padded_vocab_size": rows})


def with_table(model: Model, rows: int) -> Model:
    """Return the model with an embedding table of ``rows`` rows."""
    return replace(model, vocab_size=min(model.vocab_size, rows), padded_vocab_size=rows)


def description(model: Model) -> dict[str, Any]:
    """Return the model description that ``described`` reads."""
    return {DESCRIPTION: asdict(model)}


def save(content: Any, path: Path) -> None:
    """Write a torch.save file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as stream:  # torch's own file writer does not report why it cannot write
        torch.save(content, stream)


def placeholder(shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor without storage, as a placeholder for ``mapped_file``."""
    with _FAKE:
        return torch.empty(shape, dtype=dtype)


def mapped_file(content: Any, path: Path) -> Any:
    """Write a torch.save file without the values of its tensors, and return its content, memory-mapped to the file.

    Data copied into a tensor of the result is written to the file, and needs no other memory.
    """
    with torch.serialization.skip_data(materialize_fake_tensors=True):
        save(content, path)
    # Without reserved space, writing a page to a full disk would end the process with SIGBUS.
    with path.open("rb+") as stream:
        os.posix_fallocate(stream.fileno(), 0, path.stat().st_size)
    with torch.serialization.set_default_mmap_options(mmap.MAP_SHARED):
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)


def owned(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor, or a copy if it is a view: torch.save would write the entire storage of a view."""
    is_view = not tensor.is_contiguous() or tensor.untyped_storage().nbytes() != tensor.nbytes
    return tensor.clone(memory_format=torch.contiguous_format) if is_view else tensor
