"""Language model: the native decoder with a checkpoint's weights, on one device or over tensor-parallel ranks."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from ascend_adapt.checkpoint.detection import open_checkpoint
from ascend_adapt.checkpoint.source import Given, Source
from ascend_adapt.checkpoint.vocabulary_rows import is_vocabulary
from ascend_adapt.config.train_config import Model, Parallel
from ascend_adapt.errors import CheckpointError
from ascend_adapt.native import device as devices
from ascend_adapt.native.generation.inference_model import InferenceModel
from ascend_adapt.native.model.decoder import Decoder
from ascend_adapt.native.model.initialisation import part
from ascend_adapt.native.parallel import mesh as meshes
from ascend_adapt.native.parallel.mesh import Mesh
from ascend_adapt.native.parallel.parameters import placed
from ascend_adapt.native.parallel.tensor_parallel import TensorParallel
from ascend_adapt.whole_numbers import of_variable

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


@contextmanager
def ranks_of_this_job(kind: str | None = None) -> Iterator[Mesh]:
    """Yield the mesh of this process: every rank that a launcher started is a tensor-parallel rank.

    ``kind`` selects the device of a process without a launcher; a launcher selects it for its ranks.
    """
    device = devices.of_this_rank(None if "RANK" in os.environ else kind)
    world = of_variable(os.environ, "WORLD_SIZE", 1)
    if world == 1:
        yield meshes.single(device)
        return
    dist.init_process_group(devices.backend(device))
    try:
        yield meshes.build(Parallel(tensor=world), device)
    finally:
        dist.destroy_process_group()


class LanguageModel(InferenceModel):
    """A checkpoint's decoder."""

    def __init__(self, source: Source, mesh: Mesh, dtype: torch.dtype | None = None) -> None:
        """Load the weights, one parameter in host memory at a time; ``dtype`` None keeps the checkpoint's.

        Raises:
            CheckpointError: the checkpoint cannot be read, or its heads cannot be divided over the ranks.
        """
        model, ranks = source.model, mesh.parallel.tensor
        check_divisible(source, ranks)
        rows = -(-model.padded_vocab_size // ranks) * ranks
        with torch.device("meta"):
            decoder = Decoder(
                dataclasses.replace(model, padded_vocab_size=rows), TensorParallel.of(mesh), range(model.num_layers)
            )
        weights = {}
        for one in placed([decoder]):
            whole = source.read(one.name)
            if is_vocabulary(one.name):
                whole = nn.functional.pad(whole, (0, 0, 0, rows - whole.shape[0]))
            weights[one.name] = part(whole, one, mesh).to(mesh.device, dtype or source.dtype, copy=True)
        decoder.load_state_dict(weights, assign=True)
        super().__init__(model, decoder.eval().requires_grad_(False), mesh)
        self.source = source

    @classmethod
    def load(cls, path: Path, mesh: Mesh, dtype: str | None = None, config: Sequence[Path] = ()) -> LanguageModel:
        """Return the model of a checkpoint of any dialect; ``config``: GPT-NeoX's YAML, if the checkpoint has none."""
        return cls(open_checkpoint(path, Given(config=config)), mesh, DTYPES[dtype] if dtype else None)

    @property
    def vocabulary(self) -> str:
        """Description of the vocabulary: its size, and the treatment of padding."""
        padding = self.model.padded_vocab_size - self.model.vocab_size
        note = f", of which {padding} are padding: part of the softmax, as in training, and never generated"
        return f"{self.model.padded_vocab_size} rows{note if padding else ''}"


def check_divisible(source: Source, ranks: int) -> None:
    """Check that a checkpoint's model can be divided over ``ranks``.

    Raises:
        CheckpointError: heads or columns cannot be divided.
    """
    model: Model = source.model
    sizes = {name: getattr(model, name) for name in ("num_heads", "num_query_groups", "ffn_hidden_size")}
    wrong = [f"{name} {size}" for name, size in sizes.items() if size % ranks]
    if wrong:
        usable = max(n for n in range(1, ranks) if all(size % n == 0 for size in sizes.values()))
        raise CheckpointError(
            f"{source.path}: {' and '.join(wrong)} cannot be divided over {ranks} tensor-parallel ranks, expected a "
            f"divisor — pass --tp {usable}"
        )
