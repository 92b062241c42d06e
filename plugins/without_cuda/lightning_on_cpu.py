"""Scripts that ask Lightning for GPUs, on a CPU: Lightning sees that there are none, and gets CPUs for the request.

Only accelerator="gpu" and "cuda" are such a request: accelerator="auto" chooses the CPU itself. Source: lightning 2.6
fabric/connector.py, pytorch/trainer/connectors/accelerator_connector.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ascend_adapt import Call, Patch, Symptom, wrap

from . import programs

if TYPE_CHECKING:
    from ascend_adapt.patches.declare.terms import Terms

_CONNECTORS = {
    "lightning": (
        "lightning.fabric.connector:_Connector",
        "lightning.pytorch.trainer.connectors.accelerator_connector:_AcceleratorConnector",
    ),
    "lightning-fabric": ("lightning_fabric.connector:_Connector",),
    "pytorch-lightning": ("pytorch_lightning.trainer.connectors.accelerator_connector:_AcceleratorConnector",),
}


def _terms(name: str, distribution: str) -> Terms:
    return {
        "name": name,
        "requires": (f"{distribution}>=2",),
        "devices": "cpu",
        "why": "a script for GPUs asks for them by name, but this host has none",
        "until": "the script passes accelerator='auto'",
        "without": "crash",
        "symptom": Symptom(reason="the fault is in the callers"),
    }


def _on(distribution: str, connector: str) -> list[Patch]:
    module = connector.partition(":")[0]

    @wrap(f"{connector}._choose_gpu_accelerator_backend", **_terms(f"backend_of_{module}", distribution))
    def backend(call: Call) -> Any:
        """Take "gpu" as "cuda", as on a host with GPUs."""
        return "cuda" if programs.current() else call.proceed()

    @wrap(f"{connector}._set_parallel_devices_and_init_accelerator", **_terms(f"devices_of_{module}", distribution))
    def devices(call: Call) -> Any:
        """Use as many CPU processes as the script asks for GPUs."""
        connector = call.instance
        if connector._accelerator_flag != "cuda" or not programs.current():
            return call.proceed()
        connector._accelerator_flag = "cpu"
        connector._devices_flag = _number_of(connector._devices_flag)
        call.proceed()
        if "fsdp" in str(connector._strategy_flag).lower():
            connector._accelerator_flag = "cuda"  # Lightning rejects FSDP for "cpu", although torch supports it there.
        return None

    return [backend, devices]


def _number_of(devices: Any) -> Any:
    """Return the number of GPUs in Lightning's argument: a number, a list of indices, one as text, "auto" or -1."""
    from ._torch_on_cpu import ranks_here

    if devices in ("auto", -1, "-1"):
        return ranks_here()
    if isinstance(devices, str) and "," in devices:
        devices = [index for index in devices.split(",") if index.strip()]
    return len(devices) if isinstance(devices, (list, tuple)) else devices


PATCHES = [one for name, connectors in _CONNECTORS.items() for path in connectors for one in _on(name, path)]
