"""Makes the patches that provide a package."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from ascend_adapt import Patch, provide

from ..without_cuda.programs import is_cuda_code


def provided(name: str, *names: str, source: str = "", has_fallback: tuple[str, ...] = ()) -> Patch:
    """Return a patch that provides module ``name`` with ``names`` from the module ``source`` of this folder.

    The packages ``has_fallback`` do not see it: without the module, they use their own fallback, which is adapted.
    """

    def is_needed(importer: dict[str, Any]) -> bool:
        root = str(importer.get("__name__", "")).partition(".")[0]
        return root not in has_fallback and is_cuda_code(importer)

    def fill(module: ModuleType) -> None:
        import importlib

        home = importlib.import_module(f"{__package__}.{source}") if source else None
        for one in names:
            setattr(module, one, getattr(home, one))
        if "." not in name:
            module.__version__ = VERSIONS.get(name, "0")  # type: ignore[attr-defined]

    declare: Callable[[Callable[[ModuleType], None]], Patch] = provide(
        name,
        name=name.replace(".", "_"),
        seen_by=is_needed,
        devices=("cpu", "npu"),
        why=f"{name} is built for CUDA only",
        until="the package supports this device",
        without="crash",
    )
    return declare(fill)


# The package versions whose functions are provided; programs check them.
VERSIONS = {"flash_attn": "2.8.3", "xformers": "0.0.32", "apex": "0.1"}
