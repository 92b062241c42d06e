"""Support on a CPU for device maps of from_pretrained that name a GPU. Source: transformers 4.57.6 and 5.24.0."""

from __future__ import annotations

from typing import Any

from ascend_adapt import Call, Symptom, wrap


@wrap(
    "transformers.modeling_utils:PreTrainedModel.from_pretrained",
    requires="transformers>=4.57",
    devices="cpu",
    why="scripts pass device_map={'': local_rank}, and torch rejects a device index without an accelerator",
    until="torch accepts a number as a device on a host without an accelerator",
    without="crash",
    symptom=Symptom(reason="the fault is in the callers"),
)
def device_map_indices(call: Call) -> Any:
    """Map the GPUs of device_map to the CPU; "auto" and other values are unchanged."""
    if (given := call.kwargs.get("device_map")) is not None:
        on_host = (
            {name: _on_host(device) for name, device in given.items()} if isinstance(given, dict) else _on_host(given)
        )
        call.kwargs = {**call.kwargs, "device_map": on_host}
    return call.proceed()


def _on_host(device: Any) -> Any:
    is_gpu = isinstance(device, int) or str(device).partition(":")[0] == "cuda"
    return "cpu" if is_gpu else device
