"""npu_rotary_mul with its gradient, and npu_apply_rotary_pos_emb: x * cos + rotate(x) * sin."""

from __future__ import annotations

import torch

from ascend_adapt.emulation.operators.kernel import kernel
from ascend_adapt.emulation.operators.limits import FLOATS, Limit, check, document, dtype, shape
from ascend_adapt.emulation.operators.precision import wide

_MUL = document("torch_npu-npu_rotary_mul.md")
_APPLY = document("torch_npu-apply_rotary_pos_emb.md")

MODE = Limit("npu_rotary_mul", "rotary_mode is 'half' or 'interleave'", check("opapi/RotaryMulKernelNpuOpApi.cpp"))
DTYPE = Limit("npu_rotary_mul", "input, r1 and r2 are float16, bfloat16 or float32", _MUL)
DIMENSIONS = Limit("npu_rotary_mul", "input has 3 or 4 dimensions, r1 and r2 as many, in one shape", _MUL)
HEAD_SIZE = Limit("npu_rotary_mul", "the last size D is even, below 896, and that of r1 and r2", _MUL)
BATCH_AND_HEADS = Limit(
    "npu_rotary_mul",
    "half: B and N are below 1000, and B*N at most 1024 where r1 or r2 ask for a gradient; interleave: B*N below 1000",
    _MUL,
)
BROADCAST = Limit(
    "npu_rotary_mul",
    "r1 and r2 span S and D, in half mode B too, or all dimensions; interleave: S and D only",
    _MUL,
)
ROTATE_GRADIENT = Limit("npu_rotary_mul", "rotate is not given where a gradient is asked for", _MUL, silent=True)

LAYOUT = Limit("npu_apply_rotary_pos_emb", "layout is BSND (or its older name BSH) and 4-D, or TND and 3-D", _APPLY)
HALF_ONLY = Limit("npu_apply_rotary_pos_emb", "rotary_mode is 'half'", _APPLY)
SIZES = Limit(
    "npu_apply_rotary_pos_emb",
    "D is 64 or 128 in all inputs, and cos and sin have the leading sizes of query and key with N = 1",
    _APPLY,
)
ONE_DTYPE = Limit("npu_apply_rotary_pos_emb", "all inputs are of one dtype", _APPLY)
INFERENCE = Limit(
    "npu_apply_rotary_pos_emb",
    "no input asks for a gradient: the operator overwrites query and key and has none",
    _APPLY,
    silent=True,
)


@kernel("npu_rotary_mul")
def rotary_mul(
    self: torch.Tensor, r1: torch.Tensor, r2: torch.Tensor, rotary_mode: str, rotate: torch.Tensor | None = None
) -> torch.Tensor:
    """Return x * r1 + rotate(x) * r2 in the dtype of x; ``rotate`` [D, D], if given, is the rotation as a matrix."""
    _require(self, r1, r2, rotary_mode)
    asks = any(tensor.requires_grad for tensor in (self, r1, r2))
    ROTATE_GRADIENT.require(rotate is None or not asks, "rotate is given and an input requires grad")
    x = wide(self)
    turned = _rotated(x, rotary_mode) if rotate is None else x @ wide(rotate).to(x.dtype)
    return (x * _like(r1, self) + turned * _like(r2, self)).to(self.dtype)


@kernel("npu_rotary_mul_backward")
def rotary_mul_backward(
    grad: torch.Tensor, self: torch.Tensor, r1: torch.Tensor, r2: torch.Tensor, rotary_mode: str
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the gradients of x, r1 and r2, summed over what r1 and r2 are broadcast over."""
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
    LAYOUT.require(all(tensor.dim() == rank for tensor in inputs.values()), f"layout is {layout!r}, {found}")
    HALF_ONLY.require(rotary_mode == "half", f"rotary_mode is {rotary_mode!r}")
    ONE_DTYPE.require(len({tensor.dtype for tensor in inputs.values()}) == 1, f"query is {dtype(query)}, others differ")
    leading = query.shape[:-2]
    fits = query.shape[-1] in (64, 128) and cos.shape[-2] == sin.shape[-2] == 1
    fits = fits and all(tensor.shape[:-2] == leading for tensor in inputs.values())
    fits = fits and len({tensor.shape[-1] for tensor in inputs.values()}) == 1
    SIZES.require(fits, found)
    asks = [name for name, tensor in inputs.items() if tensor.requires_grad]
    INFERENCE.require(not asks, f"{', '.join(asks)} requires grad")
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
    """Return x under the transpose of the rotation, which is its negative."""
    return -_rotated(x, mode)


def _like(factor: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return cos or sin as the operator sees it: cast to the dtype of x first (opapi/RotaryMulKernelNpuOpApi.cpp)."""
    return wide(factor.detach().to(x.dtype))


def _require(x: torch.Tensor, r1: torch.Tensor, r2: torch.Tensor, mode: str) -> None:
    found = f"input is {shape(x)}, r1 is {shape(r1)}, r2 is {shape(r2)}"
    MODE.require(mode in ("half", "interleave"), f"rotary_mode is {mode!r}")
    names = ", ".join(dtype(tensor) for tensor in (x, r1, r2))
    DTYPE.require(all(tensor.dtype in FLOATS for tensor in (x, r1, r2)), f"they are {names}")
    DIMENSIONS.require(x.dim() in (3, 4) and r1.dim() == x.dim() and r1.shape == r2.shape, found)
    size = x.shape[-1]
    HEAD_SIZE.require(size % 2 == 0 and size < 896 and r1.shape[-1] == size, found)
    spans = _possible_spans(x, r1)
    half = mode == "half"
    allowed = ({"S", "BS", "BSN"} if half else {"S"}) if x.dim() == 4 else {"T", "TN"}
    BROADCAST.require(bool({span for _, span in spans} & allowed), f"rotary_mode is {mode!r}, {found}")
    if x.dim() == 4:
        asks = r1.requires_grad or r2.requires_grad
        kept = any(_counts_kept(x, layout, half, asks) for layout, span in spans if span in allowed)
        BATCH_AND_HEADS.require(kept, f"rotary_mode is {mode!r}, {found}")


def _possible_spans(x: torch.Tensor, factor: torch.Tensor) -> list[tuple[str, str]]:
    """Return (layout, span) for every reading of the shapes: the operator does not get its layout as an argument.

    A span names the leading dimensions that r1 has in full; a dimension of size 1 may count either way.
    """
    layouts = ("BNSD", "BSND", "SBND") if x.dim() == 4 else ("TND",)
    spans = []
    for layout in layouts:
        for span in ("S", "BS", "BSN") if x.dim() == 4 else ("T", "TN"):
            wanted = [size if name in span else 1 for name, size in zip(layout[:-1], x.shape, strict=False)]
            if list(factor.shape[:-1]) == wanted:
                spans.append((layout, span))
    return spans


def _counts_kept(x: torch.Tensor, layout: str, half: bool, asks: bool) -> bool:
    batch, heads = int(x.shape[layout.index("B")]), int(x.shape[layout.index("N")])
    if not half:
        return batch * heads < 1000
    return batch < 1000 and heads < 1000 and not (asks and batch * heads > 1024)
