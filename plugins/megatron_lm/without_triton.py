"""Lets modules of Megatron-core that define Triton kernels be imported without Triton.

Every GPT model imports these modules, although their kernels are only for mixtures of experts and inference. Only these
modules see the provided triton, and only during their import, so that no other package detects Triton.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, NoReturn

from ascend_adapt import Symptom, provide
from ascend_adapt.errors import AdaptError
from ascend_adapt.patches.declare.terms import Terms

from .releases import HOST

# Each of these modules imports triton without a guard. Source: 0.16.0 to 0.19.2.
IMPORTERS = (
    "megatron.core.transformer.custom_layers.batch_invariant_kernels",
    "megatron.core.inference.contexts.fused_kv_append_kernel",
    "megatron.core.inference.contexts.attention_context.triton.tensor_ops",
    "megatron.core.transformer.moe.ops.paged_stash",
)
_TERMS: Terms = {
    "host": HOST,
    "why": "kernel modules for mixtures of experts and inference import triton, and every GPT imports these modules",
    "until": "Megatron-core guards these imports, as it does its other imports of triton",
    "without": "crash",
    "symptom": Symptom("import triton", at="megatron.core.transformer.moe.ops.paged_stash"),
}


@provide("triton", importers=IMPORTERS, **_TERMS)
def triton_stub(module: ModuleType) -> None:
    """Provide the decorators; launching a kernel raises an error."""
    module.jit, module.autotune, module.heuristics = jit, decorator, decorator  # type: ignore[attr-defined]
    module.Config = dict  # type: ignore[attr-defined]
    module.cdiv = lambda x, y: -(-x // y)  # type: ignore[attr-defined]


@provide("triton.language", importers=IMPORTERS, **_TERMS)
def triton_language(module: ModuleType) -> None:
    """Provide types for annotations, under any name."""
    module.__getattr__ = lambda name: object  # type: ignore[method-assign]


def jit(function: Any = None, **options: Any) -> Any:
    """Wrap a function as a kernel, or return a decorator that does so."""
    return decorator if function is None else MissingKernel(function)


def decorator(*options: Any, **named: Any) -> Any:
    """Return a decorator that wraps a function as a kernel."""
    return lambda function: function if isinstance(function, MissingKernel) else MissingKernel(function)


class MissingKernel:
    """A Triton kernel that is defined but cannot be launched."""

    def __init__(self, function: Any) -> None:
        self.name = f"{function.__module__}.{function.__name__}"

    def __getitem__(self, grid: Any) -> NoReturn:
        """Reject the launch.

        Raises:
            AdaptError: always.
        """
        raise AdaptError(
            f"{self.name}: is a Triton kernel, but Triton is not installed — install it, or choose Megatron "
            "options that do not need it"
        )

    __call__ = __getitem__
