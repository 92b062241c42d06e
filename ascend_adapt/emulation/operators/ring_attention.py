"""npu_ring_attention_update: merges two attention outputs for the same queries and different keys.

Source of the arithmetic and the limits: the docstring in torch_npu 2.13.0.
"""

from __future__ import annotations

import torch

from ascend_adapt.emulation.operators.kernel import kernel
from ascend_adapt.emulation.operators.precision import wide
from ascend_adapt.emulation.operators.tensors import FLOATS, dtype, shape
from ascend_adapt.npu_limits import ring_attention as limits


@kernel("npu_ring_attention_update", needs_a2=True)
def ring_attention_update(
    prev_attn_out: torch.Tensor,
    prev_softmax_max: torch.Tensor,
    prev_softmax_sum: torch.Tensor,
    cur_attn_out: torch.Tensor,
    cur_softmax_max: torch.Tensor,
    cur_softmax_sum: torch.Tensor,
    actual_seq_qlen: torch.Tensor | None,
    input_layout: str,
    input_softmax_layout: str,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the merged attention, in the dtype of the first attention, and the merged softmax maxima and sums."""
    layouts = f"input_layout is {input_layout!r}, input_softmax_layout is {input_softmax_layout!r}"
    limits.LAYOUT.require(input_layout in ("SBH", "TND") and input_softmax_layout in ("", "SBH", "TND"), layouts)
    packed = input_layout == "TND"
    _require_shapes(
        packed, (prev_attn_out, cur_attn_out), (prev_softmax_max, prev_softmax_sum, cur_softmax_max, cur_softmax_sum)
    )
    largest = torch.maximum(prev_softmax_max, cur_softmax_max)
    before = prev_softmax_sum * (prev_softmax_max - largest).exp()
    now = cur_softmax_sum * (cur_softmax_max - largest).exp()
    total = before + now
    shares = [part / total for part in (before, now)]
    if packed and input_softmax_layout != "TND":
        lengths = _lengths(prev_attn_out, actual_seq_qlen)
        shares = [_rows(share, lengths) for share in shares]
    factors = [_like_attention(share, prev_attn_out, packed) for share in shares]
    joined = wide(prev_attn_out) * factors[0] + wide(cur_attn_out) * factors[1]
    return joined.to(prev_attn_out.dtype), largest, total


def _require_shapes(packed: bool, attentions: tuple[torch.Tensor, ...], statistics: tuple[torch.Tensor, ...]) -> None:
    first, found = attentions[0], ", ".join(f"{dtype(one)} {shape(one)}" for one in (*attentions, *statistics))
    fits = first.dim() == 3 and first.dtype in FLOATS
    fits = fits and all(one.shape == first.shape and one.dtype == first.dtype for one in attentions)
    fits = fits and all(one.shape == statistics[0].shape and one.dtype == torch.float32 for one in statistics)
    size = statistics[0].shape
    if fits and packed:
        fits = list(size) == [*first.shape[:2], 8]
    elif fits:
        fits = len(size) == 4 and (size[2], size[0], size[3]) == (first.shape[0], first.shape[1], 8)
        fits = fits and first.shape[2] % size[1] == 0
    limits.SHAPES.require(fits, f"they are {found}")


def _lengths(attention: torch.Tensor, starts: torch.Tensor | None) -> list[int]:
    values = [] if starts is None else [int(start) for start in starts]
    rising = all(left <= right for left, right in zip(values, values[1:], strict=False))
    fits = len(values) > 1 and values[0] == 0 and rising and values[-1] == attention.shape[0]
    limits.STARTS.require(fits, f"actual_seq_qlen is {values or None} of {attention.shape[0]} tokens")
    return [right - left for left, right in zip(values, values[1:], strict=False)]


def _rows(statistics: torch.Tensor, lengths: list[int]) -> torch.Tensor:
    """Rearrange one block [N, S, 8] per document to token order [T, N, 8]."""
    heads = statistics.shape[1]
    blocks = statistics.reshape(-1, 8).split([heads * length for length in lengths])
    return torch.cat([block.view(heads, -1, 8).transpose(0, 1) for block in blocks])


def _like_attention(share: torch.Tensor, attention: torch.Tensor, packed: bool) -> torch.Tensor:
    """Reshape a factor so that it multiplies the attention: [T, N, 1], or [S, B, H]."""
    one = wide(share[..., :1]).to(wide(attention).dtype)
    if packed:
        return one
    heads = share.shape[1]
    return one.permute(2, 0, 1, 3).expand(-1, -1, -1, attention.shape[2] // heads).flatten(2)
