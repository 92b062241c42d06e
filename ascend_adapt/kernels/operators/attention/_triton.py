"""Attention of a generated token to cached keys, in Triton: one program computes the queries that share a key head.

Keys are read once and not copied. torch's fused kernels need a float mask in the queries' dtype in every layer, and
repeat the keys of grouped-query attention.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ascend_adapt.kernels.operators.attention import AttentionCall
from ascend_adapt.kernels.triton_launch import Launcher

_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_MOST_QUERIES, _BLOCK = 16, 64
_WIDEST_BYTES = 512
"""Maximum number of queries per key head. A tile of 32 does not fit into an H100's 227 KB of shared memory."""


def supports(call: AttentionCall) -> str:
    """Return "" or why the kernel does not support the call."""
    q, k, v, masked_out = call.q, call.k, call.v, call.masked_out
    queries = q.shape[2] * (q.shape[1] // k.shape[1])
    if torch.is_grad_enabled() and any(each.requires_grad for each in (q, k, v)):
        return "it has no gradients"
    if q.dtype not in _DTYPES:
        return f"it takes fp16, bf16 and fp32, not {str(q.dtype).removeprefix('torch.')}"
    if any(one is not None for one in (call.bias, call.window, call.cu_seqlens, call.prefix)) or call.dropout_p:
        return "it takes no bias, window, packed documents, prefix or dropout"
    if call.causal and q.shape[2] > 1:
        return "it requires that all queries attend to the same keys"
    if not 0 < queries <= _MOST_QUERIES:
        return f"it supports at most {_MOST_QUERIES} queries of a key head, not {queries}"
    if masked_out is not None and any(size > 1 for size in masked_out.shape[-3:-1]):
        return "it requires one mask for all queries"
    widest = _WIDEST_BYTES // q.element_size()
    if max(k.shape[3], v.shape[3]) > widest or not k.numel() or not v.numel():
        return f"it takes head dims from 1 to {widest} and at least one key"
    return ""


def run(call: AttentionCall) -> torch.Tensor:
    """Return the attention output."""
    q, k, v = call.q, call.k, call.v
    batch, heads, queries, width = q.shape
    key_heads, keys = k.shape[1:3]
    y = q.new_empty(batch, heads, queries, v.shape[3])
    masked = None
    if call.masked_out is not None:
        masked = call.masked_out.reshape((1,) * (4 - call.masked_out.dim()) + call.masked_out.shape)
        masked = masked.expand(batch, -1, -1, keys)[:, 0, 0].view(torch.uint8)
    of_mask = (0, 0) if masked is None else masked.stride()
    _launch(
        batch * key_heads,
        q, k, v, masked, y, call.factor, key_heads, heads // key_heads, queries, keys, width, v.shape[3],
        *q.stride(), *k.stride(), *v.stride(), *of_mask,
        masked is not None, _MOST_QUERIES, _power(width), _power(v.shape[3]), _BLOCK, warps=4,
    )  # fmt: skip
    return y


def _power(size: int) -> int:
    """Return the next power of two that a matrix product of Triton takes."""
    return max(16, 1 << (size - 1).bit_length())


@triton.jit
def _decode_kernel(
    q, k, v, masked, y, factor, key_heads, shared, queries, keys, width, value_width,
    q_b, q_n, q_q, q_d, k_b, k_n, k_k, k_d, v_b, v_n, v_k, v_d, mask_b, mask_k,
    MASKED: tl.constexpr, QUERIES: tl.constexpr, WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute the attention of the ``shared * queries`` queries of one key head in one row to all its keys."""
    b = (tl.program_id(0) // key_heads).to(tl.int64)
    n = (tl.program_id(0) % key_heads).to(tl.int64)
    query = tl.arange(0, QUERIES)
    head = n * shared + query // queries
    is_query = query < shared * queries
    d = tl.arange(0, WIDTH)
    e = tl.arange(0, VALUE_WIDTH)
    rows = tl.load(
        q + b * q_b + (head * q_n + (query % queries) * q_q)[:, None] + d[None, :] * q_d,
        mask=is_query[:, None] & (d < width)[None, :],
        other=0.0,
    )
    largest = tl.full((QUERIES,), float("-inf"), tl.float32)
    total = tl.zeros((QUERIES,), tl.float32)
    sums = tl.zeros((QUERIES, VALUE_WIDTH), tl.float32)
    for first in tl.range(0, keys, BLOCK):
        key = first + tl.arange(0, BLOCK)
        here = key < keys
        columns = tl.load(
            k + b * k_b + n * k_n + (key * k_k)[None, :] + d[:, None] * k_d,
            mask=here[None, :] & (d < width)[:, None],
            other=0.0,
        )
        values = tl.load(
            v + b * v_b + n * v_n + (key * v_k)[:, None] + e[None, :] * v_d,
            mask=here[:, None] & (e < value_width)[None, :],
            other=0.0,
        )
        if MASKED:
            hidden = tl.load(masked + b * mask_b + key * mask_k, mask=here, other=1)
            here = here & (hidden == 0)
        scores = tl.dot(rows, columns, input_precision="ieee") * factor
        scores = tl.where(here[None, :], scores, float("-inf"))
        higher = tl.maximum(largest, tl.max(scores, 1))
        # If all keys so far are masked, the maximum is minus infinity, and the difference would be NaN.
        base = tl.where(higher == float("-inf"), 0.0, higher)
        weights = tl.exp(scores - base[:, None])
        shrunk = tl.exp(largest - base)
        total = total * shrunk + tl.sum(weights, 1)
        product = tl.dot(weights.to(values.dtype), values, input_precision="ieee")
        sums = sums * shrunk[:, None] + product
        largest = higher
    result = sums / tl.where(total == 0.0, 1.0, total)[:, None]
    row = (b * key_heads * shared + head) * queries + query % queries
    place = y + (row * value_width)[:, None] + e[None, :]
    tl.store(place, result.to(y.dtype.element_ty), mask=is_query[:, None] & (e < value_width)[None, :])


_launch = Launcher(_decode_kernel)
