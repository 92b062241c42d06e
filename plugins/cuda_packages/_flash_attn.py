"""FlashAttention 2's functions on ascend_adapt.kernels, for tensors [B, S, N, D], or packed [T, N, D] with cu_seqlens.

Source: the docstrings of flash_attn 2.8.3. Masks of causal and windowed attention are aligned to the last key.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch

from ascend_adapt.errors import KernelArgumentError
from ascend_adapt.kernels import attention, cross_entropy, layer_norm, rms_norm


def _masks(
    window_size: tuple[int, int], causal: bool, alibi_slopes: Any, queries: int, keys: int, device: Any
) -> dict[str, Any]:
    """Convert flash_attn's mask arguments to those of kernels.attention; a window with look-ahead becomes a mask."""
    left, right = window_size if not causal else (window_size[0], 0)
    wanted: dict[str, Any] = {}
    if alibi_slopes is not None or (right > 0) or (left >= 0 and right < 0):
        # Key positions relative to each query; the key aligned with the query has position 0.
        ahead = torch.arange(keys, device=device) - torch.arange(queries, device=device)[:, None] - (keys - queries)
        if alibi_slopes is not None:
            slopes = alibi_slopes.float().reshape(-1, alibi_slopes.shape[-1], 1, 1)
            wanted["bias"] = -slopes * ahead.abs()
        if right > 0 or left >= 0:
            outside = (ahead < -left) & (left >= 0) | (ahead > right) & (right >= 0)
            return {**wanted, "masked_out": outside[None, None]}
    if right == 0:
        return {**wanted, "causal": True, **({"window": left + 1} if left >= 0 else {})}
    return wanted


def flash_attn_func(
    q: Any,
    k: Any,
    v: Any,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """Attention of q [B, S, N, D] and k, v [B, T, Nk, D].

    Raises:
        KernelArgumentError: softcap or return_attn_probs is set, which the kernels do not support.
    """
    _refuse(softcap, return_attn_probs)
    masks = _masks(window_size, causal, alibi_slopes, q.shape[1], k.shape[1], q.device)
    q, k, v = (one.transpose(1, 2) for one in (q, k, v))
    return attention(q, k, v, scale=softmax_scale, dropout_p=dropout_p, **masks).transpose(1, 2)


def flash_attn_qkvpacked_func(qkv: Any, *args: Any, **kwargs: Any) -> Any:
    """Attention of qkv [B, S, 3, N, D]."""
    return flash_attn_func(*qkv.unbind(2), *args, **kwargs)


def flash_attn_kvpacked_func(q: Any, kv: Any, *args: Any, **kwargs: Any) -> Any:
    """Attention of q [B, S, N, D] and kv [B, T, 2, Nk, D]."""
    return flash_attn_func(q, *kv.unbind(2), *args, **kwargs)


def flash_attn_varlen_func(
    q: Any,
    k: Any,
    v: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Any = None,
) -> Any:
    """Attention inside each document of q [T, N, D] and k, v [U, Nk, D].

    Raises:
        KernelArgumentError: softcap, return_attn_probs or block_table is set, which the kernels do not support.
    """
    _refuse(softcap, return_attn_probs)
    if block_table is not None:
        raise KernelArgumentError(
            "flash_attn: block_table is given, expected none — turn off the program's paged cache"
        )
    is_plain = alibi_slopes is None and tuple(window_size) == (-1, -1)
    if is_plain and (cu_seqlens_q is cu_seqlens_k or torch.equal(cu_seqlens_q, cu_seqlens_k)):
        packed = (one.transpose(0, 1)[None] for one in (q, k, v))
        seen = attention(
            *packed, causal=causal, scale=softmax_scale, dropout_p=dropout_p, cu_seqlens=cu_seqlens_q.to(torch.int32)
        )
        return seen[0].transpose(0, 1)
    documents = zip(
        _pieces(q, cu_seqlens_q),
        _pieces(k, cu_seqlens_k),
        _pieces(v, cu_seqlens_k),
        _of_each(alibi_slopes),
        strict=False,
    )
    options: dict[str, Any] = {
        "dropout_p": dropout_p,
        "softmax_scale": softmax_scale,
        "causal": causal,
        "window_size": window_size,
    }
    seen = [
        flash_attn_func(q_[None], k_[None], v_[None], alibi_slopes=slopes, **options)
        for q_, k_, v_, slopes in documents
    ]
    return torch.cat([one[0] for one in seen])


def flash_attn_varlen_qkvpacked_func(qkv: Any, cu_seqlens: Any, max_seqlen: int, *args: Any, **kwargs: Any) -> Any:
    """Attention inside each document of qkv [T, 3, N, D]."""
    q, k, v = qkv.unbind(1)
    return flash_attn_varlen_func(q, k, v, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, *args, **kwargs)


def flash_attn_varlen_kvpacked_func(q: Any, kv: Any, *args: Any, **kwargs: Any) -> Any:
    """Attention inside each document of q [T, N, D] and kv [U, 2, Nk, D]."""
    return flash_attn_varlen_func(q, *kv.unbind(1), *args, **kwargs)


# flash_attn.flash_attention and the names of flash_attn 1, as in 1.0.9

flash_attn_unpadded_func = flash_attn_varlen_func
flash_attn_unpadded_kvpacked_func = flash_attn_varlen_kvpacked_func
flash_attn_unpadded_qkvpacked_func = flash_attn_varlen_qkvpacked_func


class FlashAttention(torch.nn.Module):  # type: ignore[misc]
    """Attention of qkv [B, S, 3, N, D], which may have a padding mask [B, S], or of packed qkv [T, 3, N, D]."""

    def __init__(
        self, softmax_scale: float | None = None, attention_dropout: float = 0.0, device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__()
        self.softmax_scale, self.dropout_p = softmax_scale, attention_dropout

    def forward(
        self,
        qkv: Any,
        key_padding_mask: Any = None,
        causal: bool = False,
        cu_seqlens: Any = None,
        max_s: Any = None,
        need_weights: bool = False,
    ) -> tuple[Any, None]:
        """Return the attention, with zeros at the padding, and None for the weights.

        Raises:
            KernelArgumentError: the weights are requested, which the kernels do not keep.
        """
        _refuse(0.0, need_weights)
        options = (self.dropout_p if self.training else 0.0, self.softmax_scale, causal)
        if cu_seqlens is not None:
            return flash_attn_varlen_qkvpacked_func(qkv, cu_seqlens, max_s, *options), None
        if key_padding_mask is None:
            return flash_attn_qkvpacked_func(qkv, *options), None
        rows, kept, starts, longest, _ = unpad_input(qkv, key_padding_mask)
        seen = flash_attn_varlen_qkvpacked_func(rows, starts, longest, *options)
        return pad_input(seen, kept, *qkv.shape[:2]), None


def _pieces(packed: Any, starts: Any) -> list[Any]:
    return list(packed.tensor_split(starts[1:-1].long().cpu()))


def _of_each(alibi_slopes: Any) -> Any:
    """Return ALiBi slopes for each document; slopes [N] apply to all documents."""
    return itertools.repeat(alibi_slopes) if alibi_slopes is None or alibi_slopes.dim() == 1 else alibi_slopes


def _refuse(softcap: float, return_attn_probs: bool) -> None:
    if softcap or return_attn_probs:
        raise KernelArgumentError(
            f"flash_attn: softcap={softcap}, return_attn_probs={return_attn_probs}: expected neither — the kernels "
            "have no softcap and keep no probabilities; choose another attention in the program"
        )


# flash_attn.bert_padding


def index_first_axis(x: Any, indices: Any) -> Any:
    """Return rows of x [T, ...]."""
    return x[indices]


def unpad_input(hidden_states: Any, attention_mask: Any, unused_mask: Any = None) -> tuple[Any, ...]:
    """Return the rows of [B, S, ...] that the mask keeps, their indices, cu_seqlens, maximum length, and lengths."""
    lengths = attention_mask.sum(-1, dtype=torch.int32)
    kept = (attention_mask if unused_mask is None else attention_mask + unused_mask).flatten().nonzero().flatten()
    starts = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    return hidden_states.flatten(0, 1)[kept], kept, starts, int(lengths.max()), lengths


def pad_input(hidden_states: Any, indices: Any, batch: int, seqlen: int) -> Any:
    """Return [B, S, ...] with the rows at ``indices``, and zeros elsewhere."""
    padded = hidden_states.new_zeros(batch * seqlen, *hidden_states.shape[1:])
    return padded.index_copy(0, indices, hidden_states).unflatten(0, (batch, seqlen))


def rearrange(tensor: Any, pattern: str, **axes: int) -> Any:
    """Rearrange with einops, which flash_attn needs."""
    import einops

    return einops.rearrange(tensor, pattern, **axes)


# flash_attn.utils.distributed


def all_gather(input_: Any, process_group: Any) -> Any:
    """All-gather the rows of [T, ...] from all ranks, with a gradient."""
    from torch.distributed.nn.functional import all_gather as gathered

    return torch.cat(gathered(input_.contiguous(), group=process_group))


# flash_attn.layers.rotary, and the extension rotary_emb


def apply_rotary_emb(x: Any, cos: Any, sin: Any, interleaved: bool = False, inplace: bool = False, **_: Any) -> Any:
    """Rotate the first 2 * R entries of x [B, S, N, D] by cos and sin, each [S, R]."""
    width = 2 * cos.shape[-1]
    cos, sin = (one[: x.shape[1], None].to(x.dtype) for one in (cos, sin))
    rotated, rest = x[..., :width], x[..., width:]
    first, second = (rotated[..., ::2], rotated[..., 1::2]) if interleaved else rotated.chunk(2, -1)
    pair = (first * cos - second * sin, first * sin + second * cos)
    turned = torch.stack(pair, -1).flatten(-2) if interleaved else torch.cat(pair, -1)
    return torch.cat((turned, rest), -1)


apply_rotary_emb_func = apply_rotary_emb


def apply_rotary(x1: Any, x2: Any, cos: Any, sin: Any, out1: Any, out2: Any, conj: bool) -> None:
    """Rotate the halves x1, x2 into out1, out2, which may be the same tensors; ``conj`` inverts the rotation."""
    sin = -sin if conj else sin
    first, second = x1 * cos - x2 * sin, x1 * sin + x2 * cos
    out1.copy_(first), out2.copy_(second)


# flash_attn.losses and flash_attn.ops


class CrossEntropyLoss(torch.nn.Module):  # type: ignore[misc]
    """Cross entropy of logits [T, V] and labels [T]."""

    def __init__(
        self, ignore_index: int = -100, reduction: str = "mean", label_smoothing: float = 0.0, **_: Any
    ) -> None:
        super().__init__()
        self.ignore_index, self.reduction, self.label_smoothing = ignore_index, reduction, label_smoothing

    def forward(self, input: Any, target: Any) -> Any:
        """Return the loss."""
        return cross_entropy(
            input,
            target,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
            label_smoothing=self.label_smoothing,
        )


def layer_norm_fn(
    x: Any,
    weight: Any,
    bias: Any,
    residual: Any = None,
    *,
    eps: float = 1e-6,
    dropout_p: float = 0.0,
    prenorm: bool = False,
    residual_in_fp32: bool = False,
    is_rms_norm: bool = False,
    return_dropout_mask: bool = False,
    **others: Any,
) -> Any:
    """Return the norm of dropout(x) + residual over the last axis; with ``prenorm``, also return the sum.

    Raises:
        KernelArgumentError: a second input, row scales or the dropout mask is requested.
    """
    if return_dropout_mask or any(value is not None and value is not False for value in others.values()):
        raise KernelArgumentError(
            f"layer_norm_fn: {', '.join(others) or 'return_dropout_mask'}: expected none of these — the "
            "kernels normalize "
            "a single sum; choose another norm in the program"
        )
    total = torch.nn.functional.dropout(x, dropout_p) if dropout_p else x
    if residual is not None:
        total = (total.float() + residual.float()).to(torch.float32 if residual_in_fp32 else residual.dtype)
    whole = total.to(weight.dtype)
    normed = rms_norm(whole, weight, eps=eps) if is_rms_norm else layer_norm(whole, weight, bias, eps=eps)
    if is_rms_norm and bias is not None:
        normed = normed + bias
    normed = normed.to(x.dtype)
    return (normed, total) if prenorm else normed


def rms_norm_fn(x: Any, weight: Any, bias: Any, **options: Any) -> Any:
    """Return the RMS norm, with the options of layer_norm_fn."""
    return layer_norm_fn(x, weight, bias, is_rms_norm=True, **options)


class RMSNorm(torch.nn.Module):  # type: ignore[misc]
    """RMS norm over the last axis."""

    def __init__(self, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
        super().__init__()
        self.eps, self.weight = eps, torch.nn.Parameter(torch.ones(hidden_size))

    def forward(self, x: Any) -> Any:
        """Return the norm of x."""
        return rms_norm(x, self.weight, eps=self.eps)
