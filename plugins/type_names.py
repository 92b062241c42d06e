"""Functions that recognise a dtype by the tensor type name of a GPU: ``'torch.cuda.FloatTensor'``."""

from __future__ import annotations

from typing import Any

from ascend_adapt import Call, Patch, Symptom, wrap

CUDA = "cuda"
CPU = "cpu"  # the name of DeepSpeed's CPU accelerator; the type is 'torch.FloatTensor'


def type_names(
    name: str,
    target: str,
    comparison: str,
    *,
    host: str | tuple[str, ...],
    named: str = CUDA,
    requires: str | tuple[str, ...] = (),
) -> Patch:
    """Return the patch that makes ``target``, and all that it calls, see the type names of ``named``."""

    @wrap(
        target,
        name=name,
        requires=requires,
        host=host,
        devices=("cpu", "npu") if named == CUDA else "cpu",
        why=f"it compares with 'torch.{named}.FloatTensor', which has another name on this device",
        until="the code base compares dtypes",
        without="crash",
        symptom=Symptom(comparison),
    )
    def with_type_names(call: Call) -> Any:
        """Run with the type names that the code compares with."""
        from ._type_names import TypeNames

        with TypeNames(named):
            return call.proceed()

    return with_type_names
