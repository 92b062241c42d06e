"""Provides ``pkg_resources``, which setuptools removed in version 82."""

from __future__ import annotations

from types import ModuleType

from ascend_adapt import provide

from ..code_bases import GPT_NEOX, MEGATRON_DEEPSPEED


@provide(
    "pkg_resources",
    host=(GPT_NEOX, MEGATRON_DEEPSPEED),
    why="these code bases import packaging from it to compare versions",
    until="these code bases import packaging directly",
    without="crash",
)
def pkg_resources(module: ModuleType) -> None:
    """Provide packaging, which compares versions."""
    import packaging
    import packaging.version

    module.packaging = packaging  # type: ignore[attr-defined]
    module.parse_version = packaging.version.parse  # type: ignore[attr-defined]
