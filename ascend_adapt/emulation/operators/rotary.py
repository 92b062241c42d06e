"""npu_rotary_mul with its gradient, and npu_apply_rotary_pos_emb: x * cos + rotate(x) * sin."""

from __future__ import annotations

import torch

from ascend_adapt.emulation.operators.kernel import kernel
from ascend_adapt.emulation.operators.precision import wide
from ascend_adapt.emulation.operators.tensors import FLOATS, dtype, shape
from ascend_adapt.npu_limits import rotary as limits


@kernel("npu_rotary_mul")
def rotary_mul(
    self: torch.Tensor, r1: torch.Tensor, r2: torch.Tensor, rotary_mode: str, rotate: torch.Tensor | None = None
) -> torch.Tensor:
    """Return x * r1 + rotate(x) * r2 in the dtype of x; ``rotate``, if given, is the rotation as a matrix [D, D]."""
    _require(self, r1, r2, rotary_mode)
    asks = any(tensor.requires_grad for tensor in (self, r1, r2))
    limits.ROTATE_GRADIENT.require(rotate is None or not asks, "rotate is given and an input requires grad")
    x = wide(self)
    turned = _rotated(x, rotary_mode) if rotate is None else x @ wide(rotate).to(x.dtype)
    return (x * _like(r1, self) + turned * _like(r2, self)).to(self.dtype)


@kernel("npu_rotary_mul_backward")
def rotary_mul_backward(
    grad: torch.Tensor, self: torch.Tensor, r1: torch.Tensor, r2: torch.Tensor, rotary_mode: str
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the gradients of x, r1 and r2; the last two are summed over their broadcast dimensions."""
    _require(self, r1, r2, rotary_mode)
    x, dy = wide(self), wide(grad)
    dx = dy * _like(r1, self) + _rotated_back(dy * _like(r2, self), rotary_mode)
    dr1 = (dy * x).sum_to_size(r1.shape)
    dr2 = (dy * _rotated(x, rotary_mode)).sum_to_size(r2.shape)
    return dx.to(self.dtype), dr1.to(self.dtype), dr2.to(self.dtype)


@kernel("npu_apply_rotary_pos_emb", needs_a2=True)
def apply_rotary_pos_emb(
    query: torch.Tensor, key: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, layout: str, rotary_mode: str = "half"
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotate query and key in place, and return them."""
    inputs = {"query": query, "key": key, "cos": cos, "sin": sin}
    found = ", ".join(f"{name} is {shape(tensor)}" for name, tensor in inputs.items())
    rank = {"BSND": 4, "BSH": 4, "TND": 3}.get(layout)
    limits.LAYOUT.require(all(tensor.dim() == rank for tensor in inputs.values()), f"layout is {layout!r}, {found}")
    limits.HALF_ONLY.require(rotary_mode == "half", f"rotary_mode is {rotary_mode!r}")
    limits.ONE_DTYPE.require(
        len({tensor.dtype for tensor in inputs.values()}) == 1, f"query is {dtype(query)}, others differ"
    )
    leading = query.shape[:-2]
    fits = query.shape[-1] in (64, 128) and cos.shape[-2] == sin.shape[-2] == 1
    fits = fits and all(tensor.shape[:-2] == leading for tensor in inputs.values())
    fits = fits and len({tensor.shape[-1] for tensor in inputs.values()}) == 1
    limits.SIZES.require(fits, found)
    asks = [name for name, tensor in inputs.items() if tensor.requires_grad]
    limits.INFERENCE.require(not asks, f"{', '.join(asks)} requires grad")
    for tensor in (query, key):
        x = wide(tensor)
        tensor.copy_(x * _like(cos, tensor) + _rotated(x, "half") * _like(sin, tensor))
    return query, key


def _rotated(x: torch.Tensor, mode: str) -> torch.Tensor:
    if mode == "half":
        first, second = x.chunk(2, -1)
        return torch.cat((-second, first), -1)
    return torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)


def _rotated_back(x: torch.Tensor, mode: str) -> torch.Tensor:
    """Apply the transpose of the rotation, which is its negative, to x."""
    return -_rotated(x, mode)


def _like(factor: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Cast cos or sin to the dtype of x, as the operator does (opapi/RotaryMulKernelNpuOpApi.cpp)."""
    return wide(factor.detach().to(x.dtype))


def _require(x: torch.Tensor, r1: torch.Tensor, r2: torch.Tensor, mode: str) -> None:
    found = f"input is {shape(x)}, r1 is {shape(r1)}, r2 is {shape(r2)}"
    limits.MODE.require(mode in ("half", "interleave"), f"rotary_mode is {mode!r}")
    names = ", ".join(dtype(tensor) for tensor in (x, r1, r2))
    limits.DTYPE.require(all(tensor.dtype in FLOATS for tensor in (x, r1, r2)), f"they are {names}")
    limits.DIMENSIONS.require(x.dim() in (3, 4) and r1.dim() == x.dim() and r1.shape == r2.shape, found)
    size = x.shape[-1]
    limits.HEAD_SIZE.require(size in limits.WIDTHS and r1.shape[-1] == size, found)
    layouts = _possible_layouts(x, r1, mode)
    limits.BROADCAST.require(bool(layouts), f"rotary_mode is {mode!r}, {found}")
    if x.dim() == 4:
        asks = r1.requires_grad or r2.requires_grad
        kept = any(_counts_kept(x, layout, mode, asks) for layout in layouts)
        limits.BATCH_AND_HEADS.require(kept, f"rotary_mode is {mode!r}, {found}")


def _possible_layouts(x: torch.Tensor, factor: torch.Tensor, mode: str) -> list[str]:
    """Return every layout that allows the shapes, because the operator does not get its layout as an argument.

    A dimension of size 1 may or may not count as present in r1.
    """
    return [
        layout
        for layout in limits.LAYOUTS[x.dim()]
        for span in limits.SPANS[x.dim(), mode]
        if list(factor.shape[:-1])
        == [size if name in span else 1 for name, size in zip(layout[:-1], x.shape, strict=False)]
    ]


def _counts_kept(x: torch.Tensor, layout: str, mode: str, asks: bool) -> bool:
    batch, heads = int(x.shape[layout.index("B")]), int(x.shape[layout.index("N")])
    if mode == "interleave":
        return batch * heads in limits.COUNTS
    fits = batch in limits.COUNTS and heads in limits.COUNTS
    return fits and not (asks and batch * heads > limits.MOST_WITH_GRADIENT)
