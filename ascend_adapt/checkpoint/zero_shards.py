"""fp32 master weights in DeepSpeed's ZeRO shards and universal checkpoints, gathered one parameter at a time.

Stages 1 and 2 flatten the parameters of an optimizer group into one vector, of which each data-parallel rank has a
part. Newer releases save the position of each parameter's fragment (``param_slice_mappings``); older releases
concatenate parameters in the order of ``param_shapes``. Stage 3 splits each parameter over the ranks, padded to equal
lengths.

Sources: DeepSpeed 0.9.2 to 0.19.8 utils/zero_to_fp32.py, runtime/zero/stage_1_and_2.py, runtime/bf16_optimizer.py,
checkpoint/ds_to_universal.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from ascend_adapt.checkpoint.torch_files import attributes, load_torch_dict, load_torch_file
from ascend_adapt.errors import CheckpointError

_SHARD = "{prefix}zero_pp_rank_*_mp_rank_{rank}_{kind}_states.pt"
_Gather = Callable[[], torch.Tensor]


class MasterWeights(Mapping[str, torch.Tensor]):
    """Master weights of one model-parallel rank, by upstream's names; frozen parameters have their own dtype."""

    def __init__(self, states: Path) -> None:
        """Index the shards of the rank whose model states are in the file ``states``.

        Raises:
            CheckpointError: shards are missing or cannot be read.
        """
        self._where = states.parent
        rank = re.sub(r".*mp_rank_(\d+)_.*", r"\1", states.name)
        self._shards = [_optimizer(path) for path in _files(self._where, rank, "optim")]
        if not self._shards:
            raise CheckpointError(
                f"{self._where}: has no ZeRO shards of rank {rank}, expected the optimizer's "
                f"{_SHARD.format(prefix='', rank=rank, kind='optim')} — omit --master-weights"
            )
        count = self._shards[0].get("partition_count", len(self._shards))
        expected = max(count) if isinstance(count, list) else count
        if expected != len(self._shards):
            raise CheckpointError(
                f"{self._where}: has {len(self._shards)} ZeRO shards of rank {rank}, expected {expected}, one for each "
                "data-parallel rank — copy all of its files"
            )
        state = load_torch_dict(states)
        self._shapes = [{str(name): torch.Size(shape) for name, shape in group.items()} for group in _groups(state)]
        is_stage_3 = "fp32_flat_groups" in self._shards[0]
        self._gathers: dict[str, _Gather] = dict(self._stage_3() if is_stage_3 else self._stage_1_and_2())
        frozen = state.get("frozen_param_fragments") or {}
        if is_stage_3 and frozen:
            parts = [load_torch_dict(path)["frozen_param_fragments"] for path in _files(self._where, rank, "model")]
            shapes = state["frozen_param_shapes"]
            self._gathers |= {name: _joined([part[name] for part in parts], shapes[name]) for name in frozen}
        else:
            self._gathers |= {name: lambda tensor=tensor: tensor for name, tensor in frozen.items()}
        shared = state.get("shared_params") or {}
        self._gathers |= {name: self._gathers[same] for name, same in shared.items() if same in self._gathers}

    def _stage_1_and_2(self) -> Iterator[tuple[str, _Gather]]:
        flats = [shard.get("single_partition_of_fp32_groups") for shard in self._shards]
        if any(flat is None for flat in flats):
            raise CheckpointError(
                f"{self._where}: has ZeRO shards without fp32 weights, expected those of DeepSpeed 0.4 or newer — "
                "omit --master-weights"
            )
        mappings = [shard.get("param_slice_mappings") for shard in self._shards]
        for number, shapes in enumerate(self._shapes):
            groups = [flat[number] for flat in flats]  # type: ignore[index]
            if all(mappings):
                addresses = [
                    {str(name): attributes(one) for name, one in each[number].items()}  # type: ignore[index]
                    for each in mappings
                ]
                for name, shape in shapes.items():
                    pieces = [
                        flat[each[name]["start"] :][: each[name]["numel"]]
                        for flat, each in zip(groups, addresses, strict=True)
                        if name in each
                    ]
                    yield name, _joined(pieces, shape)
                continue
            begin = 0
            for name, shape in shapes.items():
                yield name, _joined(list(_across(groups, begin, shape.numel())), shape)
                begin += shape.numel()

    def _stage_3(self) -> Iterator[tuple[str, _Gather]]:
        ranks = [shard["fp32_flat_groups"] for shard in self._shards]
        begin = 0
        for shapes in self._shapes:
            for name, shape in shapes.items():
                length = -(-shape.numel() // len(ranks))
                yield name, _joined([piece for rank in ranks for piece in _across(rank, begin, length)], shape)
                begin += length

    def __getitem__(self, name: str) -> torch.Tensor:
        """Return a parameter, gathered from all shards.

        Raises:
            CheckpointError: the shards do not have all values of the parameter.
        """
        try:
            return self._gathers[name]()
        except RuntimeError as error:
            raise CheckpointError(
                f"{self._where}: {name} differs in size between ZeRO shards and model states, expected the same "
                "— copy both from one checkpoint"
            ) from error

    def __iter__(self) -> Iterator[str]:
        """Yield the names of all parameters."""
        return iter(self._gathers)

    def __len__(self) -> int:
        """Return the number of parameters."""
        return len(self._gathers)


class UniversalWeights(Mapping[str, torch.Tensor]):
    """Weights of a universal checkpoint, which DeepSpeed's ds_to_universal.py has merged over all ranks."""

    FOLDER = "zero"

    def __init__(self, states: Path) -> None:
        """Index the folder next to the file ``states``, which records shapes only for ZeRO-3."""
        folder = states.parent / self.FOLDER
        self._files = {str(path.parent.relative_to(folder)): path for path in sorted(folder.glob("**/fp32.pt"))}
        self._shapes = {name: shape for group in _groups(load_torch_dict(states)) for name, shape in group.items()}

    def __getitem__(self, name: str) -> torch.Tensor:
        """Return a parameter; raises CheckpointError if its file cannot be read."""
        path = self._files[name]
        content = load_torch_file(path)
        tensor = content.get("param") if isinstance(content, dict) else content
        if not isinstance(tensor, torch.Tensor):
            raise CheckpointError(f"{path}: contains no parameter, expected one — copy all files of the checkpoint")
        # With ZeRO-3 the values are flat and padded.
        return _joined([tensor], self._shapes[name])() if tensor.dim() == 1 and name in self._shapes else tensor

    def __iter__(self) -> Iterator[str]:
        """Yield the names of all parameters."""
        return iter(self._files)

    def __len__(self) -> int:
        """Return the number of parameters."""
        return len(self._files)


def _files(folder: Path, rank: str, kind: str) -> list[Path]:
    """Return the shards of a model-parallel rank in order of data-parallel rank; bf16 files have another prefix."""
    found = [
        path for prefix in ("", "bf16_") for path in folder.glob(_SHARD.format(prefix=prefix, rank=rank, kind=kind))
    ]
    return sorted(found, key=lambda path: int(re.sub(r".*pp_rank_(\d+)_.*", r"\1", path.name)))


def _optimizer(path: Path) -> dict[str, Any]:
    state = load_torch_dict(path).get("optimizer_state_dict")
    if not isinstance(state, dict):
        raise CheckpointError(f"{path}: has no optimizer_state_dict, expected a ZeRO shard — restore it")
    return state


def _groups(state: Mapping[str, Any]) -> list[Mapping[str, torch.Size]]:
    """Return the parameter shapes of each optimizer group; old releases save one dict for all groups."""
    shapes = state.get("param_shapes") or []
    return list(shapes) if isinstance(shapes, list) else [shapes]


def _across(flats: list[torch.Tensor], begin: int, length: int) -> Iterator[torch.Tensor]:
    """Yield the pieces of [begin, begin + length) of concatenated vectors."""
    for flat in flats:
        size = flat.numel()
        if begin < size and length > 0:
            yield flat[max(begin, 0) : begin + length]
            length -= min(size, begin + length) - max(begin, 0)
            begin = size
        begin -= size


def _joined(pieces: list[torch.Tensor], shape: torch.Size) -> _Gather:
    """Return a function that joins flat pieces into a parameter; the pieces may be padded at the end."""

    def gather() -> torch.Tensor:
        flat = torch.cat([piece.flatten() for piece in pieces]) if len(pieces) > 1 else pieces[0].flatten()
        return flat[: torch.Size(shape).numel()].view(torch.Size(shape))

    return gather
