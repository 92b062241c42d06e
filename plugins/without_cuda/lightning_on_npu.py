"""Process groups of Lightning on an NPU. Source: lightning 2.6 fabric/utilities/distributed.py."""

from __future__ import annotations

from typing import Any

from ascend_adapt import Call, Patch, Symptom, wrap


def _on(distribution: str, package: str) -> Patch:
    @wrap(
        f"{package}.utilities.distributed:_get_default_process_group_backend_for_device",
        name=f"process_groups_of_{package}_on_npus",
        requires=f"{distribution}>=2",
        devices="npu",
        why="transfer_to_npu removes the default backend of CUDA devices, so Lightning creates a group with gloo",
        until="Lightning asks torch for the default backend of a device",
        without="crash",
        symptom=Symptom("default_device_backend_map"),
    )
    def backend(call: Call) -> Any:
        """Return hccl for a CUDA device, which is the NPU for Lightning."""
        return "hccl" if call["device"].type == "cuda" else call.proceed()

    return backend


PATCHES = [_on("lightning", "lightning.fabric"), _on("lightning-fabric", "lightning_fabric")]
