"""Host operators at full size: large floating-point tensors are not initialized, converted or saved; ranks only.

A model of 20 billion parameters would need 80 GB of host memory, and minutes to initialize.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from ascend_adapt.emulation.full_size import masks, remembered, values

HELD_BYTES = 1 << 20
"""Maximum bytes of a host tensor that is computed normally. Other dtypes, such as token ids, have no limit."""

# Operators that initialize, convert and flatten models, or update them on the host (an offloaded optimizer).
_OPERATORS = (
    "normal_", "uniform_", "random_", "bernoulli_.float", "exponential_", "log_normal_", "cauchy_", "geometric_",
    "erfinv_", "erfinv.out", "fill_.Scalar", "fill_.Tensor", "zero_", "copy_", "clamp_", "clamp.out", "clamp",
    "clamp_min_", "add_.Tensor", "add.out", "add.Tensor", "sub_.Tensor", "sub.out", "sub.Tensor", "mul_.Tensor",
    "mul.out", "mul.Tensor", "div_.Tensor", "div.out", "div.Tensor", "sqrt_", "sqrt", "pow.Tensor_Scalar",
    "addcmul_", "addcdiv_", "lerp_.Scalar", "lerp_.Tensor", "cat", "cat.out", "clone", "tril", "triu", "tril_",
    "triu_", "neg", "sign", "linalg_qr", "mm", "addmm", "where.self", "_fused_adam_", "_fused_adamw_",
    "_fused_adam_.tensor_lr", "_fused_adamw_.tensor_lr", "isnan", "isinf", "abs", "eq.Scalar", "ne.Scalar",
)  # fmt: skip

skipped: Counter[str] = Counter()
"""Maps an operator to the bytes of the tensors that were not written."""
_libraries: list[Any] = []


def install() -> None:
    """Make these operators skip large host tensors in this process."""
    _libraries.append(torch.library.Library("aten", "IMPL"))
    for name in _OPERATORS:
        base, _, overload = name.partition(".")
        operator = getattr(getattr(torch.ops.aten, base, None), overload or "default", None)
        if operator is None or not torch._C._dispatch_has_computed_kernel_for_dispatch_key(operator.name(), "CPU"):
            continue
        _libraries[-1].impl(name, _bounded(operator), "CPU", with_keyset=True, allow_override=True)
    _leave_out_saving()


def _bounded(operator: Any) -> Callable[..., Any]:
    original = torch.library.get_kernel(operator, "CPU")
    name = operator.name()
    places = [place for place, one in enumerate(operator._schema.arguments) if _is_written(one) and not one.kwarg_only]
    takes_tensor = [str(one.type) == "Tensor" for one in operator._schema.arguments]
    outs = [one.name for one in operator._schema.arguments if _is_written(one) and one.kwarg_only]
    base = name.partition("::")[2].partition(".")[0]

    def run(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        is_mask = base in masks.CUT and masks.write(args[0], lambda tensor: tensor)
        written = [args[place] for place in places] + [kwargs[out] for out in outs]
        if values.computing.depth or not (_has_large(args) or _has_large(kwargs.values())):
            masks.forget_numbers(remembered.tensors_in(written))
            result = original.call_boxed(keyset, *_with_tensors(args, takes_tensor), **kwargs)
            if is_mask:
                values.note_mask(result, True)
            return result
        masks.forget(remembered.tensors_in(written))
        if not written:
            result = operator(*map(_as_meta, args), **{key: _as_meta(value) for key, value in kwargs.items()})
            made = torch.utils._pytree.tree_map_only(torch.Tensor, _unwritten, result)
            skipped[name] += sum(one.nbytes for one in torch.utils._pytree.tree_leaves(made))
            return made
        for out in outs:
            meta = {key: _as_meta(value) for key, value in kwargs.items()}
            result = operator(*map(_as_meta, args), **meta)
            if kwargs[out].shape != result.shape:
                kwargs[out].resize_(result.shape)
        skipped[name] += sum(one.nbytes for one in torch.utils._pytree.tree_leaves(written))
        if operator._schema.returns:
            masks.note_number(base, args, written[0])
            return written[0]
        return None

    return run


def _with_tensors(args: Any, takes_tensor: list[bool]) -> list[Any]:
    """Return arguments in which each number that replaced a tensor is a tensor again; type promotion is unchanged."""
    return [
        _tensor_of(value, args[0]) if takes and isinstance(value, (bool, int, float, complex)) else value
        for value, takes in zip(args, takes_tensor, strict=False)
    ]


def _tensor_of(number: Any, other: Any) -> torch.Tensor:
    if not isinstance(other, torch.Tensor):
        return torch.scalar_tensor(number)
    dtype = torch.result_type(other, number)
    if other.dim() and other.is_floating_point() and dtype.is_floating_point:
        dtype = torch.float64
    return torch.scalar_tensor(number, dtype=dtype)


def _is_large(tensor: torch.Tensor) -> bool:
    if not tensor.is_floating_point() or tensor.numel() * tensor.element_size() <= HELD_BYTES:
        return False
    return not values.is_mask(tensor.untyped_storage())


def _has_large(given: Any) -> bool:
    for value in given:
        if isinstance(value, torch.Tensor):
            if _is_large(value):
                return True
        elif isinstance(value, (list, tuple)) and _has_large(value):
            return True
    return False


def _as_meta(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        strides = torch.Tensor.stride(value)
        return torch.empty_strided(value.size(), strides, dtype=value.dtype, device="meta") if value.dim() else value
    if isinstance(value, (list, tuple)):
        return [_as_meta(one) for one in value]
    return torch.device("meta") if isinstance(value, torch.device) else value


def _unwritten(meta: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(meta.size(), meta.stride(), dtype=meta.dtype, device="cpu")


def _is_written(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def _leave_out_saving() -> None:
    """Skip writing checkpoint files whose tensors have no values; files with small tensors are written normally."""
    import wrapt

    def save(call: Any, instance: Any, args: Any, named: Any) -> Any:
        leaves = torch.utils._pytree.tree_leaves(args[0] if args else named.get("obj"))
        large = sum(one.nbytes for one in leaves if isinstance(one, torch.Tensor) and _is_large(one))
        if not large:
            return call(*args, **named)
        skipped["torch.save"] += large
        return None

    wrapt.wrap_function_wrapper("torch", "save", save)
