"""Rotary position embedding (RoPE)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from ascend_adapt.errors import KernelArgumentError
from ascend_adapt.kernels import small_tensors
from ascend_adapt.kernels.arguments import check_float, check_shape, check_together
from ascend_adapt.kernels.dispatch import Kernel
from ascend_adapt.kernels.operation import KernelCall


@dataclass(eq=False)
class RotaryCall(KernelCall):
    """The arguments of rotary."""

    x: Any
    cos: Any
    sin: Any
    interleaved: bool = False
    key: Any = None

    def tensors(self) -> tuple[Any, ...]:
        """Return x, and key if it is given."""
        return (self.x,) if self.key is None else (self.x, self.key)

    def each(self) -> Iterator[RotaryCall]:
        """Yield a separate call for each tensor."""
        for tensor in self.tensors():
            yield replace(self, x=tensor, key=None)

    def check(self) -> None:
        """Check that cos and sin broadcast to the rotated part of the last axis."""
        x, cos, sin = self.x, self.cos, self.sin
        for name, tensor in (("x", x), ("cos", cos), ("sin", sin)):
            check_float(name, tensor, shape="[..., D]", least=1)
        check_shape("sin", sin, cos.shape, f"cos {list(cos.shape)}")
        check_together("x", x, cos=cos, sin=sin)
        if self.key is not None:
            check_float("key", self.key, shape="[..., D]", least=1)
            check_together("x", x, key=self.key)
            if (self.key.dim(), self.key.shape[-1], self.key.dtype) != (x.dim(), x.shape[-1], x.dtype):
                raise KernelArgumentError(
                    f"key: is {list(self.key.shape)} {self.key.dtype}, x {list(x.shape)} {x.dtype}, expected the same "
                    "dtype, number of axes and last size — rotate them separately"
                )
            for one in self.each():
                one.check()
            return
        if cos.shape[-1] % 2 or not 2 <= cos.shape[-1] <= x.shape[-1]:
            raise KernelArgumentError(
                f"cos: has shape {list(cos.shape)} for x {list(x.shape)}, expected an even last axis of at most "
                f"{x.shape[-1]} — pass one value for each rotated element"
            )
        fits = cos.dim() <= x.dim() and all(
            mine in (1, whole) for mine, whole in zip(reversed(cos.shape[:-1]), reversed(x.shape[:-1]), strict=False)
        )
        if not fits:
            raise KernelArgumentError(
                f"cos: has shape {list(cos.shape)}, expected a shape that broadcasts to "
                f"{[*x.shape[:-1], cos.shape[-1]]} — reshape it"
            )

    def small(self) -> RotaryCall:
        """Return a small call with a few positions, in the same layout."""
        alike = small_tensors.maker()

        def few(tensor: Any) -> Any:
            return alike(tensor, *(min(size, small_tensors.ROWS) for size in tensor.shape[:-1]), tensor.shape[-1])

        key = None if self.key is None else few(self.key)
        return replace(self, x=few(self.x), cos=few(self.cos), sin=few(self.sin), key=key)


def rotary(x: Any, cos: Any, sin: Any, *, interleaved: bool = False, key: Any = None) -> Any:
    """Return ``x`` with the first R elements of its last axis rotated, computed in fp32, in the dtype of ``x``.

    Args:
        x: [..., D], such as [B, N, S, D] or [S, B, N, D].
        cos: broadcasts to [..., R], R even and at most D; the remaining D - R elements are unchanged.
        sin: in the shape of ``cos``.
        interleaved: whether pairs are adjacent, (2i, 2i + 1). Otherwise they are (i, i + R / 2), as in GPT-NeoX and
            Llama.
        key: a second tensor, with any number of heads, rotated by the same angles in one kernel. The result is then (x,
            key).

    Raises:
        KernelArgumentError: shapes do not match.
        BackendUnavailable: the requested backend does not support the call.
    """
    return KERNEL(RotaryCall(x, cos, sin, interleaved, key))


KERNEL = Kernel("rotary")
