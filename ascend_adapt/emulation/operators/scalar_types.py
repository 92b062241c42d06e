"""Maps the numbers that torch_npu's operators use for dtypes to torch dtypes."""

from __future__ import annotations

import torch

from ascend_adapt.errors import OperatorMissing

# The numbers of c10::ScalarType (pytorch c10/core/ScalarType.h); since 2.13, operators take them as int.
_SCALAR_TYPES = {
    0: torch.uint8,
    1: torch.int8,
    2: torch.int16,
    3: torch.int32,
    4: torch.int64,
    5: torch.float16,
    6: torch.float32,
    7: torch.float64,
    11: torch.bool,
    12: torch.qint8,
    13: torch.quint8,
    14: torch.qint32,
    15: torch.bfloat16,
    16: torch.quint4x2,
}


def dtype_of(dtype: int | torch.dtype) -> torch.dtype:
    """Return the torch dtype of a number.

    Raises:
        OperatorMissing: the number denotes one of torch_npu's additional dtypes, such as hifloat8.
    """
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype not in _SCALAR_TYPES:
        raise OperatorMissing(
            f"dtype={dtype}, expected the number of a dtype of torch — the emulation does not support "
            "torch_npu's additional dtypes, which only an Ascend950 computes with"
        )
    return _SCALAR_TYPES[dtype]
