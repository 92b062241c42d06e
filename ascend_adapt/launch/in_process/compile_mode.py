"""`--npu-compile-mode`: whether torch_npu uses prebuilt operator binaries or compiles operators for each new shape."""

from __future__ import annotations

from types import ModuleType
from typing import Any


def watch(mode: str) -> None:
    """Set the mode right after torch_npu is imported, before the first tensor is on the device."""
    import wrapt

    def set_mode(torch_npu: ModuleType) -> None:
        npu: Any = torch_npu.npu
        npu.set_compile_mode(jit_compile=mode == "jit")

    wrapt.register_post_import_hook(set_mode, "torch_npu")
