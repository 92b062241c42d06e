"""Attention, with the mask contract of ``ascend_adapt.kernels.masks``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ascend_adapt.errors import KernelArgumentError
from ascend_adapt.kernels import masks
from ascend_adapt.kernels.arguments import check_float, check_together
from ascend_adapt.kernels.dispatch import Backend, Call, Kernel


@dataclass(frozen=True)
class AttentionCall(Call):
    """The arguments of attention, checked; a window makes ``causal`` True."""

    q: Any
    k: Any
    v: Any
    masked_out: Any = None
    bias: Any = None
    causal: bool = False
    scale: Any = None
    dropout_p: float = 0.0
    cu_seqlens: Any = None
    window: int | None = None


def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    masked_out: Any = None,
    bias: Any = None,
    causal: bool = False,
    scale: float | None = None,
    dropout_p: float = 0.0,
    cu_seqlens: Any = None,
    window: int | None = None,
) -> Any:
    """Return softmax(scale * QK^T + bias) V, accumulated in fp32, in the dtype of ``q``.

    Args:
        q: [B, N, Q, D].
        k: [B, Nk, K, D]; N is a multiple of Nk, and N / Nk neighbouring heads share a key head.
        v: [B, Nk, K, Dv].
        masked_out: bool, broadcasts to [B, N, Q, K]; True = not seen.
        bias: float, broadcasts to [B, N, Q, K]; added after scaling.
        causal: hide the keys behind each query, aligned to the last key; with Q > K the leading rows see nothing.
        scale: of the scores; None is 1 / sqrt(D).
        dropout_p: the share of probabilities that is dropped; the others are scaled up.
        cu_seqlens: int32 [documents + 1], the borders of documents packed into one row (B = 1, Q = K), none of which
            sees another.
        window: causal, and each query sees itself and the ``window - 1`` keys before it.

    Returns:
        [B, N, Q, Dv]. A row with nothing to see is all zeros, and its gradients are zero.

    Raises:
        KernelArgumentError: a float as masked_out, a bool as bias, or shapes that do not fit.
        BackendUnavailable: a backend was asked for that cannot serve the call.
    """
    for name, tensor, shape in (("q", q, "[B, N, Q, D]"), ("k", k, "[B, Nk, K, D]"), ("v", v, "[B, Nk, K, Dv]")):
        check_float(name, tensor, 4, shape)
    check_together("q", q, k=k, v=v)
    if not q.dtype == k.dtype == v.dtype:
        raise KernelArgumentError(f"q, k, v: are {q.dtype}, {k.dtype}, {v.dtype}, expected one dtype — convert them")
    batch, heads, queries, width = q.shape
    key_batch, key_heads, keys, key_width = k.shape
    if (key_batch, key_width) != (batch, width) or tuple(v.shape[:3]) != tuple(k.shape[:3]):
        raise KernelArgumentError(
            f"q {list(q.shape)}, k {list(k.shape)}, v {list(v.shape)}: expected [B, N, Q, D], [B, Nk, K, D], "
            "[B, Nk, K, Dv] with equal B, D and Nk — reshape them"
        )
    if key_heads == 0 or heads % key_heads:
        raise KernelArgumentError(
            f"q {list(q.shape)}, k {list(k.shape)}: {heads} heads are no multiple of {key_heads} key heads — "
            "give a multiple"
        )
    if not 0.0 <= dropout_p < 1.0:
        raise KernelArgumentError(f"dropout_p={dropout_p!r}: expected at least 0 and less than 1 — correct it")
    masks.check_masked_out(masked_out, (batch, heads, queries, keys), q.device)
    masks.check_bias(bias, (batch, heads, queries, keys), q.device)
    masks.check_window(window)
    masks.check_cu_seqlens(cu_seqlens, batch, queries, keys, q.device)
    scale = width**-0.5 if scale is None else scale
    causal = bool(causal) or window is not None
    return KERNEL(AttentionCall(q, k, v, masked_out, bias, causal, scale, dropout_p, cu_seqlens, window))


# Behind npu, the CUDA ones are timed against each other; sdpa leaves the choice to torch.
KERNEL = Kernel(
    "attention",
    [
        Backend("npu", ("npu",), f"{__name__}._npu"),
        Backend("flash", ("cuda",), f"{__name__}._sdpa:flash", measured=True),
        Backend("cudnn", ("cuda",), f"{__name__}._sdpa:cudnn", measured=True, deterministic=False),
        Backend("efficient", ("cuda",), f"{__name__}._sdpa:efficient", measured=True, deterministic=False),
        Backend("sdpa", ("cuda", "cpu"), f"{__name__}._sdpa:any_of_torch"),
        Backend("reference", (), f"{__name__}._reference"),
    ],
)
