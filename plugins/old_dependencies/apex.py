"""The parts of NVIDIA's apex and amp_C that these code bases use, on torch operators for every device.

Optimizer states have apex's layout, so that checkpoints from GPUs can be loaded. GPT-NeoX and Megatron-LM use their
own fallback.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType

from ascend_adapt import Call, Patch, Symptom, provide, wrap

from ..code_bases import BIGSCIENCE, GLM, MEGATRON_DEEPSPEED


def _provided(name: str) -> Callable[[Callable[[ModuleType], None]], Patch]:
    return provide(
        name,
        host=(BIGSCIENCE, GLM, MEGATRON_DEEPSPEED),
        why=f"{name} is imported without a guard, but is only built for CUDA and is not on PyPI",
        until="these code bases use torch's multi-tensor operators",
        without="crash",
    )


@_provided("apex")
def apex(module: ModuleType) -> None:
    """Provide an empty package, of which only the modules are used."""


@_provided("apex.optimizers")
def apex_optimizers(module: ModuleType) -> None:
    """Provide FusedAdam and FusedSGD."""
    from ._apex_optimizers import FusedAdam, FusedSGD

    module.FusedAdam, module.FusedSGD = FusedAdam, FusedSGD  # type: ignore[attr-defined]


@_provided("apex.normalization")
def apex_normalization(module: ModuleType) -> None:
    """Provide apex's norms."""
    from . import _apex_norms

    for name in _apex_norms.NAMES:
        setattr(module, name, getattr(_apex_norms, name))


@_provided("apex.normalization.fused_layer_norm")
def apex_fused_layer_norm(module: ModuleType) -> None:
    """Provide apex's norms."""
    apex_normalization.function(module)  # type: ignore[misc]


@_provided("apex.multi_tensor_apply")
def apex_multi_tensor_apply(module: ModuleType) -> None:
    """Provide multi_tensor_applier."""
    from ._amp_c import MultiTensorApply

    module.MultiTensorApply = MultiTensorApply  # type: ignore[attr-defined]
    module.multi_tensor_applier = MultiTensorApply(2048 * 32)  # type: ignore[attr-defined]


@_provided("amp_C")
def amp_c(module: ModuleType) -> None:
    """Provide the multi-tensor operations that these code bases use: scale, 2-norm, Adam."""
    from . import _amp_c

    for name in _amp_c.NAMES:
        setattr(module, name, getattr(_amp_c, name))


@wrap(
    "transformers.utils.import_utils:is_apex_available",
    requires="transformers>=4.57,<5",
    host=(BIGSCIENCE, GLM, MEGATRON_DEEPSPEED),
    why="transformers' Trainer imports amp if apex is available; the provided apex has no amp",
    until="support for transformers 4 ends",
    without="crash",
    symptom=Symptom(reason="the fault is due to the apex that this plugin provides"),
)
def apex_stub_reported_unavailable(call: Call) -> bool:
    """Return False if the imported apex is the package that this plugin provides."""
    spec = getattr(sys.modules.get("apex"), "__spec__", None)
    return not str(getattr(spec, "origin", "")).startswith("provided by ") and bool(call.proceed())


@wrap(
    "deepspeed.runtime.zero.utils:is_zero_supported_optimizer",
    requires="deepspeed>=0.6",
    why="ZeRO accepts apex's FusedAdam as a tested optimizer only if apex is installed when DeepSpeed is imported",
    until="these code bases use torch's multi-tensor operators",
    without="crash",
    symptom=Symptom("type(optimizer) in ZERO_SUPPORTED_OPTIMIZERS"),
)
def zero_accepts_fused_adam(call: Call) -> bool:
    """Return whether ZeRO supports an optimizer, which includes the provided FusedAdam of apex."""
    optimizer = call["optimizer"]
    provided = "ascend_adapt_plugins.old_dependencies._apex_optimizers"
    is_ours = f"{type(optimizer).__module__}.{type(optimizer).__name__}" == f"{provided}.FusedAdam"
    return is_ours or bool(call.proceed())
