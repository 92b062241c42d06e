"""Detects mistakes that kernels cannot detect: CUDA-only calls, scalers, models and casts; for ranks only."""

from __future__ import annotations

import sys
import weakref
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from ascend_adapt.emulation import finding, location, report
from ascend_adapt.emulation.registration import override


def watch() -> None:
    """Report these mistakes from now on, without changing the effect of the calls."""
    import wrapt

    wrapt.wrap_function_wrapper("torch.cuda", "_lazy_init", _cuda_only)
    wrapt.wrap_function_wrapper("torch.amp", "GradScaler.__init__", _scaler)
    wrapt.wrap_function_wrapper("torch.npu", "synchronize", _synchronize)
    wrapt.wrap_function_wrapper("torch", "compile", _compile)
    register_optimizer_step_post_hook(_step)
    _watch_casts()


def _cuda_only(call: Any, instance: Any, args: Any, named: Any) -> Any:
    try:
        return call(*args, **named)
    except (AssertionError, RuntimeError) as error:
        report.found(finding.CUDA_ONLY, "torch.cuda is initialized", str(error).splitlines()[0])
        raise


def _scaler(call: Any, scaler: Any, args: Any, named: Any) -> None:
    call(*args, **named)
    device = args[0] if args else named.get("device", "cuda")
    wanted = named.get("enabled", args[5] if len(args) > 5 else True)
    if wanted and torch.device(device).type != "npu":
        state = "scales nothing" if not scaler.is_enabled() else "is for another device"
        report.found(finding.SCALER, f"GradScaler({str(device)!r})", state)


def _synchronize(call: Any, instance: Any, args: Any, named: Any) -> Any:
    if not sys._getframe(1).f_globals.get("__name__", "").startswith("torch_npu"):
        # Event.synchronize reports the wait when it ends.
        report.found(finding.WAIT, "torch.npu.synchronize")
    return call(*args, **named)


def _compile(call: Any, instance: Any, args: Any, named: Any) -> Any:
    """Trace compiled functions and run their graphs eagerly; on a real NPU, triton-ascend or CANN compiles them."""
    backend = named.get("backend", "inductor")
    if backend not in _COMPILERS:
        return call(*args, **named)
    report.found(finding.NOT_COMPILED, f"torch.compile(backend={backend!r})", "its graphs run eagerly")
    kept = {key: value for key, value in named.items() if key not in ("backend", "mode", "options")}
    given = named.get("options") or {}
    of_tracing = {key: given[key] for key in ("guard_filter_fn",) if key in given}
    return call(*args, **kept, options=of_tracing or None, backend="eager")


def _step(optimizer: torch.optim.Optimizer, *call: Any) -> None:
    global _calls_before
    if _begins_step(optimizer):
        report.step()
    calls = sum(report.tally.operators.values())
    # With an offloaded optimizer, the model still computes on the device between two steps.
    idle, _calls_before = calls == _calls_before, calls
    devices = {one.device.type for group in optimizer.param_groups for one in group["params"] if one.grad is not None}
    if idle and devices == {"cpu"}:
        kind = type(optimizer).__name__
        report.found(
            finding.NOT_MOVED, f"{kind}.step", "all its parameters are on the CPU, so the model trains on the CPU"
        )


_stepped: weakref.WeakKeyDictionary[torch.optim.Optimizer, set[int]] = weakref.WeakKeyDictionary()
"""The first parameter of each group that an optimizer has updated in its current step."""


def _begins_step(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether a call begins a step: DeepSpeed's ZeRO calls its optimizer once for each group of parameters."""
    updated = {id(group["params"][0]) for group in optimizer.param_groups if group["params"]}
    so_far = _stepped.get(optimizer)
    if so_far and updated.isdisjoint(so_far):
        so_far |= updated
        return False
    _stepped[optimizer] = updated
    return True


_calls_before = 0
_COMPILERS = ("inductor", "npugraph_ex", "npugraphs")
_library: list[Any] = []


def _watch_casts() -> None:
    composite = torch.ops.aten.to.dtype

    def to(
        self: torch.Tensor,
        dtype: torch.dtype,
        non_blocking: bool = False,
        copy: bool = False,
        memory_format: torch.memory_format | None = None,
    ) -> torch.Tensor:
        result: torch.Tensor = composite.decompose(
            self, dtype, non_blocking=non_blocking, copy=copy, memory_format=memory_format
        )
        if result.dtype != dtype and not location.is_inside("torch._tensor_str"):
            asked, given = (str(one).removeprefix("torch.") for one in (dtype, result.dtype))
            report.found(finding.CAST, f"to {asked}", f"torch_npu returns {given}")
        return result

    _library.append(torch.library.Library("aten", "IMPL"))
    override(_library[-1], "to.dtype", to, "AutogradPrivateUse1")
