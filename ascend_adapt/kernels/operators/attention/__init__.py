"""Attention, with the mask contract of ``ascend_adapt.kernels.masks``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ascend_adapt.errors import KernelArgumentError
from ascend_adapt.kernels import masks, small_tensors
from ascend_adapt.kernels.arguments import check_float, check_number, check_together
from ascend_adapt.kernels.dispatch import Kernel
from ascend_adapt.kernels.operation import KernelCall
from ascend_adapt.npu_limits.fusion_attention import PREFIXES


@dataclass(eq=False)
class AttentionCall(KernelCall):
    """The arguments of attention. A window implies ``causal``, and a scale of None is 1 / sqrt(D)."""

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
    prefix: Any = None

    def check(self) -> None:
        """Check that masked_out is bool, bias is float, and shapes, dtypes and devices match."""
        q, k, v = self.q, self.k, self.v
        for name, tensor, shape in (("q", q, "[B, N, Q, D]"), ("k", k, "[B, Nk, K, D]"), ("v", v, "[B, Nk, K, Dv]")):
            check_float(name, tensor, 4, shape)
        check_together("q", q, k=k, v=v)
        if not q.dtype == k.dtype == v.dtype:
            raise KernelArgumentError(
                f"q, k, v: are {q.dtype}, {k.dtype}, {v.dtype}, expected one dtype — convert them"
            )
        batch, heads, queries, width = q.shape
        key_batch, key_heads, keys, key_width = k.shape
        if (key_batch, key_width) != (batch, width) or v.shape[:3] != k.shape[:3]:
            raise KernelArgumentError(
                f"q {list(q.shape)}, k {list(k.shape)}, v {list(v.shape)}: expected [B, N, Q, D], [B, Nk, K, D], "
                "[B, Nk, K, Dv] with equal B, D and Nk — reshape them"
            )
        if key_heads == 0 or heads % key_heads:
            raise KernelArgumentError(
                f"q {list(q.shape)}, k {list(k.shape)}: {heads} heads are not a multiple of {key_heads} key heads — "
                "repeat or drop key heads"
            )
        masks.check_masked_out(self.masked_out, (batch, heads, queries, keys), q.device)
        masks.check_bias(self.bias, (batch, heads, queries, keys), q.device)
        masks.check_window(self.window)
        if self.scale is not None:
            check_number("scale", self.scale)
            if getattr(self.scale, "requires_grad", False):
                raise KernelArgumentError(
                    "scale: requires grad, but attention computes no gradient for it — scale q by it instead"
                )
        masks.check_cu_seqlens(self.cu_seqlens, batch, queries, keys, q.device)
        masks.check_prefix(self.prefix, batch, queries, keys)
        others = (self.masked_out, self.bias, self.cu_seqlens, self.window)
        if self.prefix is not None and any(one is not None for one in others):
            raise KernelArgumentError("prefix: with another mask, expected it alone — merge both into masked_out")

    @property
    def factor(self) -> float:
        """The factor that scales the scores."""
        return float(max(1, self.q.shape[-1]) ** -0.5 if self.scale is None else self.scale)

    def small(self) -> AttentionCall:
        """Return a call with one batch, one key head, and the last queries and keys."""
        import torch

        alike = small_tensors.maker()
        heads, rows, columns = (
            self.q.shape[1] // self.k.shape[1],
            min(small_tensors.SIDE, self.q.shape[2]),
            min(small_tensors.SIDE, self.k.shape[2]),
        )
        borders = None
        if self.cu_seqlens is not None:
            borders = torch.tensor([0, rows // 2, rows], dtype=torch.int32, device=self.q.device)
        return replace(
            self,
            q=alike(self.q, 1, heads, rows, self.q.shape[3]),
            k=alike(self.k, 1, 1, columns, self.k.shape[3]),
            v=alike(self.v, 1, 1, columns, self.v.shape[3]),
            masked_out=small_tensors.corner(self.masked_out, rows, columns, heads),
            bias=small_tensors.corner(self.bias, rows, columns, heads),
            cu_seqlens=borders,
            prefix=None if self.prefix is None else self.prefix[:1].clamp(max=columns),
        )


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
    prefix: Any = None,
) -> Any:
    """Return softmax(scale * QK^T + bias) V, accumulated in fp32, in the dtype of ``q``.

    Args:
        q: [B, N, Q, D].
        k: [B, Nk, K, D]; N is a multiple of Nk, and N / Nk consecutive heads share a key head (GQA).
        v: [B, Nk, K, Dv].
        masked_out: bool, broadcasts to [B, N, Q, K]; True = masked.
        bias: float, broadcasts to [B, N, Q, K]; added after scaling.
        causal: whether to mask the keys after each query, aligned to the last key. With Q > K the leading rows are
            fully masked.
        scale: factor of the scores; None is 1 / sqrt(D).
        dropout_p: dropout probability of the attention weights.
        cu_seqlens: int32 [documents + 1], cumulative lengths of documents packed into one row (B = 1, Q = K), which do
            not attend to each other.
        window: each query attends to itself and the ``window - 1`` keys before it; implies ``causal``.
        prefix: int64 [B], on the host or on q's device. Each query attends to the first ``prefix`` keys of its row, and
            is causal after them. Requires Q = K and no other mask. Lengths on the host avoid a host-device sync.

    Returns:
        [B, N, Q, Dv]. A fully masked row is all zeros, and its gradients are zero.

    Raises:
        KernelArgumentError: masked_out is float, bias is bool, or shapes do not match.
        BackendUnavailable: the requested backend does not support the call.
    """
    if type(dropout_p) is not float:
        check_number("dropout_p", dropout_p)
    if not 0.0 <= dropout_p < 1.0:
        raise KernelArgumentError(f"dropout_p={dropout_p!r}: expected at least 0 and less than 1 — correct it")
    causal = bool(causal) or window is not None
    call = AttentionCall(q, k, v, masked_out, bias, causal, scale, dropout_p, cu_seqlens, window, prefix)
    if prefix is not None and (q.device.type != "npu" or q.shape[0] not in PREFIXES):
        call.check()
        # Only NPUs have a kernel for prefixes of several rows. On other devices all layers share one mask.
        call = replace(call, masked_out=masks.hidden_by_prefix(prefix, q.shape[2], q.device), causal=False, prefix=None)
    if cu_seqlens is not None:
        call.check()  # values, unlike shapes, are checked in every call
    return KERNEL(call)


KERNEL = Kernel("attention")
