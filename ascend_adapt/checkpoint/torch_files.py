"""torch.save files, loaded on the CPU without running code from them, for every device and release that wrote them.

torch's own restricted unpickler reads tensors and plain data. Classes of the known code bases, of argparse and of numpy
become inert stand-ins that only keep their state, without importing anything. Every other name is rejected. Files that
an NPU wrote are supported: torch_npu before torch 2.1 used its own function for tensors.

Sources: torch 2.13.0 torch/_weights_only_unpickler.py; Ascend/pytorch torch_npu/utils/storage.py _rebuild_npu_tensor.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import re
import zipfile
from pathlib import Path
from typing import Any

import torch

from ascend_adapt import pickled_enums, regular_files
from ascend_adapt.errors import CheckpointError, one_line

_CODE_BASES = (
    "apex",
    "deepspeed",
    "fp16",
    "megatron",
    "mpu",
    "numpy",
    "tokenization",
    "torch_npu",
    "transformer_engine",
)
_NAMES = {
    "_codecs.encode",
    "_io.BytesIO",
    "argparse.Namespace",
    "collections.deque",
    "pathlib.PosixPath",
    "pathlib._local.PosixPath",
    "signal.Signals",
    "types.SimpleNamespace",
    "torch.nn.functional.gelu",
    "torch.nn.functional.silu",
    "torch._C._nn.gelu",
    "torch.distributed.distributed_c10d.ReduceOp",
}
_NPU_TENSOR = ("torch_npu.utils.storage._rebuild_npu_tensor", "torch_npu.utils.tensor_methods._rebuild_npu_tensor")


class StandIn:
    """Inert stand-in for an object whose class is not loaded: its state and constructor arguments.

    Of a member of an enum, these are its value, or its name in a pickle that calls ``getattr``.
    """

    called_with: tuple[object, ...]

    def __new__(cls, *arguments: object, **_: object) -> StandIn:
        """Return a stand-in without state."""
        made = super().__new__(cls)
        made.called_with = arguments
        return made

    def __setstate__(self, state: object) -> None:
        """Keep plain attributes; any other state is dropped."""
        if isinstance(state, dict):
            self.__dict__.update(state)


def member_or_stand_in(enum: object, name: object) -> Any:
    """Return the member ``name`` of an enum, or the stand-in of a member of an enum that is not loaded."""
    if isinstance(enum, type) and issubclass(enum, StandIn):
        return enum(name)
    return pickled_enums.member(enum, name)


def load_torch_file(path: Path, part: io.BytesIO | None = None) -> Any:
    """Return the content of a torch.save file, with tensors on the CPU, memory-mapped if the format allows it.

    ``part``: bytes to read instead of the file; error messages name ``path``.

    Raises:
        CheckpointError: the file cannot be read, is compressed, or names a class or function that can run code.
    """
    stand_ins: dict[str, Any] = {}
    while True:
        try:
            # Only zip archives, torch's format since 1.6, can be mapped.
            is_mapped = _is_archive(part or path) and part is None
            if part is not None:
                part.seek(0)
            with torch.serialization.safe_globals([(one, name) for name, one in stand_ins.items()]):
                return torch.load(part or path, map_location="cpu", weights_only=True, mmap=is_mapped)
        except pickle.UnpicklingError as error:
            # torch reports the first name that is not allowed; no tensor is read until all names are known.
            name = _refused(error)
            if name is None or name in stand_ins:
                raise CheckpointError(
                    f"{path}: holds more than tensors and plain data ({one_line(error)[:200]}), expected a "
                    "torch.save file — "
                    "do not use it"
                ) from error
            stand_ins[name] = _stand_in(name, path)
        except OSError as error:
            raise CheckpointError(f"{path}: {error.strerror or error}, expected a torch.save file") from error
        except Exception as error:  # The errors that a damaged archive raises are not documented.
            raise CheckpointError(
                f"{path}: cannot be read ({type(error).__name__}: {one_line(error)[:200]}), expected a "
                "torch.save file — restore it, or choose another checkpoint"
            ) from error


def _is_archive(file: Path | io.BytesIO) -> bool:
    """Return whether a file is a zip archive.

    Raises:
        OSError: it is not a regular file.
        ValueError: its members are compressed, or unpack to more bytes than it has. torch stores them uncompressed, and
            would map the compressed bytes as the values of a tensor.
    """
    with contextlib.nullcontext(file) if isinstance(file, io.BytesIO) else regular_files.open_binary(file) as stream:
        if not zipfile.is_zipfile(stream):
            return False
        size = stream.seek(0, os.SEEK_END)
        with zipfile.ZipFile(stream) as archive:
            members = archive.infolist()
    unpacked = sum(member.file_size for member in members)
    if unpacked > size:
        raise ValueError(f"unpacks to {unpacked} bytes, the archive has {size}")
    if any(member.compress_type != zipfile.ZIP_STORED for member in members):
        raise ValueError("its members are compressed")
    return True


def load_torch_dict(path: Path) -> dict[str, Any]:
    """Return the dict in a torch.save file; raises like ``load_torch_file``, and if the content is no dict."""
    content = load_torch_file(path)
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: holds a {type(content).__name__}, expected a dict — choose another checkpoint")
    return content


def attributes(content: Any) -> dict[str, Any]:
    """Return the attributes of arguments that a code base saved as an object or as a dict."""
    if isinstance(content, dict):
        return dict(content)
    return (
        {key: value for key, value in vars(content).items() if key != "called_with"}
        if isinstance(content, StandIn)
        else {}
    )


def _stand_in(name: str, path: Path) -> Any:
    if name == pickled_enums.GETATTR:
        return member_or_stand_in
    if name in _NPU_TENSOR:
        return _rebuild_npu_tensor
    if name in _NAMES or name.partition(".")[0] in _CODE_BASES:
        return type(name.rpartition(".")[2], (StandIn,), {"__module__": __name__})
    raise CheckpointError(
        f"{path}: names {name}, which can run code, expected tensors, plain data and the classes that training code "
        "saves — do not use this file"
    )


def _rebuild_npu_tensor(
    storage: Any, offset: int, size: Any, stride: Any, requires_grad: bool, hooks: Any, _npu_format: Any
) -> torch.Tensor:
    """Rebuild a tensor from its storage, which torch_npu saves in the plain (ND) format."""
    rebuilt: torch.Tensor = torch._utils._rebuild_tensor_v2(storage, offset, size, stride, requires_grad, hooks)
    return rebuilt


def _refused(error: Exception) -> str | None:
    found = re.search(r"GLOBAL (\S+)", str(error))
    if found is None:
        return None
    name = found.group(1)
    return name if "." in name else f"builtins.{name}"  # torch's message omits "builtins."
