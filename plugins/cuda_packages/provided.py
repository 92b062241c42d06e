"""Makes the patches that provide a package."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

from ascend_adapt import Patch, provide

from ..without_cuda.programs import is_cuda_code


def provided(name: str, *names: str, source: str = "") -> Patch:
    """Return a patch that provides module ``name`` with ``names`` from the module ``source`` of this folder."""

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
        seen_by=is_cuda_code,
        devices=("cpu", "npu"),
        why=f"{name} is built for CUDA only",
        until="the package supports this device",
        without="crash",
    )
    return declare(fill)


# The package versions whose functions are provided; programs check them.
VERSIONS = {"flash_attn": "2.8.3", "xformers": "0.0.32", "apex": "0.1"}
