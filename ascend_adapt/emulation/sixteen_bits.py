"""float16 and bfloat16 operators that the CPU lacks, or that a device computes in float32; for ranks only."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from typing import Any

import torch

Kernel = Callable[..., Any]

_NARROW = {"Half": torch.float16, "BFloat16": torch.bfloat16}
_OTHERS = frozenset((torch.bfloat16, torch.float32, torch.float64))
_REFUSED = re.compile(
    r"not implemented for '(Half|BFloat16)'|Unsupported datatype for \w+:\s?(?:c10::)?(Half|BFloat16)"
)


_IN_FLOAT32 = frozenset(
    (
        *("aten::grid_sampler_2d", "aten::grid_sampler_2d_backward"),
        *("aten::grid_sampler_3d", "aten::grid_sampler_3d_backward"),
        *("aten::_conv_depthwise2d", "aten::slow_conv3d", "aten::slow_conv_dilated2d", "aten::slow_conv_dilated3d"),
        *("aten::_convolution", "aten::convolution_backward"),
        *("aten::_slow_conv2d_forward", "aten::slow_conv_transpose2d", "aten::slow_conv_transpose3d"),
        *("aten::nll_loss_forward", "aten::nll_loss_backward", "aten::nll_loss2d_forward", "aten::nll_loss2d_backward"),
        *(
            "aten::binary_cross_entropy",
            "aten::binary_cross_entropy_backward",
            "aten::binary_cross_entropy_with_logits",
        ),
        *("aten::inverse", "aten::inverse.out"),
        *("aten::prod", "aten::prod.dim_int", "aten::prod.int_out", "aten::cumprod", "aten::cumprod.out"),
    )
)
"""Operators over many terms: a device accumulates in float32, while CPU kernels round after every term."""
_PRODUCTS = frozenset(
    f"aten::{name}"
    for name in (
        *("mm", "bmm", "mv", "dot", "vdot", "matmul", "linear", "addmm", "addbmm", "baddbmm", "addmv"),
        *("matmul_backward", "linear_backward"),
    )
)
"""Products in float16: the CPU's kernels for them add term by term, and are up to 100 times slower than in float32."""
_INTEGERS_IN_FLOAT32 = frozenset(("aten::hardsigmoid", "aten::hardsigmoid_", "aten::hardsigmoid.out"))
"""Operators that accept int32 on a device. Source: op-plugin@5045ad2 test/test_base_ops/test_hardsigmoid.py."""
_BFLOAT16_IN_FLOAT32 = frozenset(f"aten::_foreach_{name}.List" for name in ("add", "add_", "sub", "sub_"))
"""Operators whose ``self + alpha * other`` in bfloat16 is computed in float32 on a device, and then rounded.

Source: op-plugin@5045ad2 test/test_base_ops/test_foreach_add_list.py and test_foreach_sub_list.py.
"""


def computed(operator: Kernel, schema: torch.FunctionSchema) -> Kernel:
    """Wrap an operator so that it computes in float32 if a device does so or the CPU has no 16-bit kernel."""
    written = [one.alias_info is not None and one.alias_info.is_write for one in schema.arguments]
    names = {one.name for one, is_written in zip(schema.arguments, written, strict=True) if is_written}

    full_name = f"{schema.name}.{schema.overload_name}".rstrip(".")
    sums = full_name in _IN_FLOAT32 or full_name.startswith("aten::upsample_")
    widens = {torch.float16, torch.bfloat16} if sums else set()
    if full_name in _BFLOAT16_IN_FLOAT32:
        widens.add(torch.bfloat16)
    if full_name in _INTEGERS_IN_FLOAT32:
        widens.add(torch.int32)
    is_product = full_name.removesuffix(".out").rstrip("_") in _PRODUCTS
    if is_product:
        widens.add(torch.float16)

    def call(*args: Any, **named: Any) -> Any:
        narrow = _first_dtype(args, widens) if widens else None
        if is_product and _first_dtype(args, _OTHERS) is not None:
            narrow = None  # The CPU's kernel rejects a mixture of dtypes, as a device does.
        if narrow is None:
            try:
                return operator(*args, **named)
            except (NotImplementedError, RuntimeError) as error:
                refused = _REFUSED.search(str(error))
                if refused is None:
                    raise
            narrow = _NARROW[refused[1] or refused[2]]
        widened: list[tuple[torch.Tensor, torch.Tensor]] = []

        def widen(value: Any) -> Any:
            if isinstance(value, (list, tuple)):
                return [widen(one) for one in value]
            if not isinstance(value, torch.Tensor) or value.dtype != narrow:
                return torch.float32 if value is narrow else value
            widened.append((value, value.float()))
            return widened[-1][1]

        def narrowed(value: Any) -> Any:
            if isinstance(value, (list, tuple)):
                return type(value)(narrowed(one) for one in value)
            if not isinstance(value, torch.Tensor):
                return value
            known = [before for before, wide in widened if wide is value]
            return known[0] if known else value.to(narrow) if value.dtype == torch.float32 else value

        wide_args = [widen(one) for one in args]
        wide_named = {name: widen(one) for name, one in named.items()}
        result = operator(*wide_args, **wide_named)
        targets = [one for one, is_written in zip(wide_args, written, strict=False) if is_written]
        for one in targets + [one for name, one in wide_named.items() if name in names]:
            for wide in one if isinstance(one, list) else [one]:
                target = narrowed(wide)
                if target is not wide:
                    (target if target.shape == wide.shape else target.resize_(wide.shape)).copy_(wide)
        return narrowed(result)

    return call


def _first_dtype(values: Iterable[Any], among: Collection[torch.dtype]) -> torch.dtype | None:
    for value in values:
        if isinstance(value, torch.Tensor) and value.dtype in among:
            return value.dtype
        if isinstance(value, (list, tuple)):
            found = _first_dtype(value, among)
            if found is not None:
                return found
    return None
