"""Patches for functions that identify a dtype by the tensor type name of a GPU: ``'torch.cuda.FloatTensor'``."""

from __future__ import annotations

from typing import Any

from ascend_adapt import Call, Patch, Symptom, wrap

CUDA = "cuda"
CPU = "cpu"  # The name of DeepSpeed's CPU accelerator; the type of its tensors is 'torch.FloatTensor'.


def type_names(
    name: str,
    target: str,
    comparison: str,
    *,
    host: str | tuple[str, ...],
    named: str = CUDA,
    requires: str | tuple[str, ...] = (),
) -> Patch:
    """Return the patch with which ``target``, and all functions that it calls, see the type names of ``named``."""

    @wrap(
        target,
        name=name,
        requires=requires,
        host=host,
        devices=("cpu", "npu") if named == CUDA else "cpu",
        why=f"it compares with 'torch.{named}.FloatTensor', which has another name on this device",
        until="the code base compares dtypes instead of type names",
        without="crash",
        symptom=Symptom(comparison),
    )
    def with_type_names(call: Call) -> Any:
        """Run the function with the type names that its code expects."""
        from ._type_names import TypeNames

        with TypeNames(named):
            return call.proceed()

    return with_type_names
