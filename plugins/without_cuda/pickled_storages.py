"""Tensors of an NPU in pickle, all_gather_object and queues between processes. Source: torch 2.13 storage.py."""

from __future__ import annotations

import io
from typing import Any

from ascend_adapt import Patch, Symptom, wrap


def _pickling(kind: str) -> Patch:
    @wrap(
        f"torch.storage:{kind}.__reduce__",
        name=f"pickled_{kind.strip('_')}",
        devices="npu",
        why="pickle stores tensors in torch's file format from before 1.6, which torch_npu cannot write",
        until="torch pickles storages in its newer file format",
        without="crash",
        symptom=Symptom("_use_new_zipfile_serialization=False"),
    )
    def reduce(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Store an NPU's storage in the newer format, which the same function loads."""
        import torch

        # TypedStorage.device would warn about the deprecation of typed storages, which torch itself pickles.
        if getattr(instance, "_untyped_storage", instance).device.type != "npu":
            return wrapped()
        file = io.BytesIO()
        torch.save(instance, file)
        return torch.storage._load_from_bytes, (file.getvalue(),)

    return reduce


PICKLED = [_pickling(kind) for kind in ("_StorageBase", "TypedStorage")]
