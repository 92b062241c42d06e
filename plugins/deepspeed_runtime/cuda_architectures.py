"""Makes DeepSpeed's operator builders accept every form of TORCH_CUDA_ARCH_LIST that torch accepts."""

from __future__ import annotations

import os
import re
from typing import Any

from ascend_adapt import Call, Symptom, wrap

_VARIABLE = "TORCH_CUDA_ARCH_LIST"


@wrap(
    "deepspeed.ops.op_builder.builder:CUDAOpBuilder.compute_capability_args",
    requires="deepspeed>=0.19",
    devices="cuda",
    why="it parses TORCH_CUDA_ARCH_LIST as numbers: 9.0a, which current CUDA images set, and names such as Hopper "
    "raise ValueError",
    until="DeepSpeed accepts every form that torch accepts",
    without="crash",
    symptom=Symptom("sorted(ccs, key=lambda cc: tuple(int(part.split('+')[0]) for part in cc.split('.')))"),
)
def numeric_cuda_architectures(call: Call) -> Any:
    """Drop suffixes, whose instructions no DeepSpeed kernel uses; replace names by the devices' capabilities."""
    listed = getattr(call.instance, "_jit_arch_list", None) or os.environ.get(_VARIABLE, "")
    numbers = in_numbers(listed)
    if numbers == listed:
        return call.proceed()
    call.instance._jit_arch_list = numbers or None
    before = os.environ.pop(_VARIABLE, None)
    if numbers:
        os.environ[_VARIABLE] = numbers
    try:
        # On return, the variable holds the architectures for which torch compiles; jit_load restores it.
        return call.proceed()
    except BaseException:
        if before is not None:
            os.environ[_VARIABLE] = before
        raise


def in_numbers(listed: str) -> str:
    """Return the list without suffixes (``9.0+PTX`` for ``9.0a+PTX``), or ``""`` if it contains a name."""
    words = re.split(r"[;\s]+", listed.strip())
    found = [re.fullmatch(r"(\d+\.\d+)([a-z]?)(\+PTX)?", word) for word in words]
    if all(match is not None and not match[2] for match in found):
        return listed
    return ";".join(dict.fromkeys(f"{one[1]}{one[3] or ''}" for one in found if one)) if all(found) else ""
