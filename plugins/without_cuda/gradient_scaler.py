"""torch_npu's gradient scaler. Source: torch_npu 2.13 npu/amp/grad_scaler.py."""

from __future__ import annotations

from typing import Any

from ascend_adapt import Call, Patch, Symptom, wrap

_SCALER = "torch_npu.npu.amp.grad_scaler:GradScaler"


@wrap(
    f"{_SCALER}.step",
    devices="npu",
    requires="torch_npu>=2.1",
    why="it passes itself to a fused optimizer's step(), which accepts no such argument; Trainer's optimizer is fused",
    until="torch_npu's GradScaler gives a fused optimizer the scale as torch's does",
    without="crash",
    symptom=Symptom("optimizer._step_supports_amp_scaling"),
)
def scaler_with_fused_optimizers(call: Call) -> Any:
    """Unscale the gradients first, as for an unfused optimizer."""
    optimizer = call["optimizer"]
    if not getattr(optimizer, "_step_supports_amp_scaling", False):
        return call.proceed()
    optimizer._step_supports_amp_scaling = False
    try:
        return call.proceed()
    finally:
        optimizer._step_supports_amp_scaling = True


@wrap(
    f"{_SCALER}.load_state_dict",
    devices="npu",
    requires="torch_npu>=2.1",
    why='the state of a scaler saved on a GPU lacks the key "dynamic"',
    until="torch_npu's GradScaler loads the state of torch's",
    without="crash",
    symptom=Symptom('state_dict["dynamic"]'),
)
def scaler_state_from_gpu(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Load the state as that of a scaler whose scale is adjusted, as every scaler of torch is."""
    state = args[0] if args else kwargs["state_dict"]
    return wrapped({"dynamic": True, **state} if state else state)  # type: ignore[no-any-return]


def _creating_in_host_memory(method: str) -> Patch:
    @wrap(
        f"{_SCALER}.{method}",
        name=f"scaler_in_host_memory_{method.rstrip('_')}",
        devices="npu",
        requires="torch_npu>=2.1",
        why='it pins the tensors that it creates, which fails after torch.set_default_device("npu")',
        until="torch_npu's GradScaler creates its tensors on the CPU",
        without="crash",
        symptom=Symptom(reason="the fault is in the default device"),
    )
    def call(call: Call) -> Any:
        """Create tensors on the host whatever the default device is."""
        import torch

        with torch.device("cpu"):
            return call.proceed()

    return call


IN_HOST_MEMORY = [_creating_in_host_memory(method) for method in ("scale", "unscale_", "update")]
