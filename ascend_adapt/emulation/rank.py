"""What makes a process a rank of an emulated NPU: kernels and counts are installed as soon as torch_npu is imported."""

from __future__ import annotations

from types import ModuleType


def watch() -> None:
    """Install the kernels right after torch_npu's import, whoever imports it: torch itself does, as on a machine."""
    from wrapt import register_post_import_hook

    register_post_import_hook(_install, "torch_npu")


def _install(torch_npu: ModuleType) -> None:
    from ascend_adapt.emulation import aten, operators

    aten.install()
    aten.refuse(set(operators.register()))
