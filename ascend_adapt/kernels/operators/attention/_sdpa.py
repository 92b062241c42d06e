"""Attention with torch's scaled_dot_product_attention, which chooses a kernel, or with one of its CUDA kernels.

torch's function differs from the contract: the causal mask is aligned to the first key, a fully masked row may give
NaN, True means attend in bool masks, and windows and packed documents are not supported.
"""

from __future__ import annotations

import inspect
import threading
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import _C
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from ascend_adapt.kernels import dispatch, masks, tracing
from ascend_adapt.kernels.operators.attention import AttentionCall, _pieces

_BLOCK = (128, 1024)
"""Minimum and maximum number of queries that share one mask with a window."""


_QKV = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
_ABSORBING = -1024.0
"""The log of a sum, added to a maximum of 2**10, keeps 14 of fp32's 24 bits: probabilities are within 2**-14."""


class _Torch:
    """torch's choice of a kernel. In deterministic mode, only CUDA kernels with deterministic gradients are allowed."""

    shares_heads = True

    def supports(self, call: AttentionCall) -> str:
        """Return "", because every call can be split into pieces that torch supports."""
        return ""

    def run(self, call: AttentionCall) -> torch.Tensor:
        """Return the attention output."""
        call = _pieces.masked_by_prefix(call)
        with self._selected(call):
            if _is_torchs_own(call):
                return self._attend(call, causal=call.causal)
            return _pieces.without_blind_rows(_pieces.as_wide_as_its_bias(call), self._whole).to(call.q.dtype)

    def prepared(self, call: AttentionCall) -> Callable[[AttentionCall], torch.Tensor]:
        """Return ``run``, or, if torch computes the unchanged call, a function without the checks of ``run``."""
        shared = bool(call.q.shape[1] != call.k.shape[1])
        if not _is_torchs_own(call) or (shared and not self.shares_heads):
            return self.run

        def run(call: AttentionCall) -> torch.Tensor:
            with self._selected(call):
                return _attention_of_torch(
                    call, *self._supported_strides(call.q, call.k, call.v), shared, causal=call.causal
                )

        return run

    def _selected(self, call: AttentionCall) -> Any:
        """Return the context that restricts the kernels that torch may choose."""
        if _loses_sums_on_cpu(call):
            return _MATH.context()
        if call.q.device.type != "cuda" or not dispatch.is_deterministic():
            return _ANY
        return (_REPEATABLE if dispatch.attention_gradients_repeat() else _MATH).context()

    def _whole(self, call: AttentionCall) -> torch.Tensor:
        if call.cu_seqlens is None:
            return self._one(call)
        if not tracing.has_values(call.cu_seqlens):
            return self._one(_pieces.masked_by_document(call))
        pieces = [self._one(document) for document in _pieces.documents(call)]
        return torch.cat(pieces, 2) if pieces else call.q.new_zeros(*call.q.shape[:3], call.v.shape[3])

    def _one(self, call: AttentionCall) -> torch.Tensor:
        queries, keys = call.q.shape[2], call.k.shape[2]
        if call.masked_out is None and call.bias is None and call.window is None:
            if not call.causal or queries == 1:
                return self._attend(call)
            if 2 * queries >= keys:
                # With as many queries as keys, both alignments are the same. Padding queries costs less than a mask.
                if queries == keys:
                    return self._attend(call, causal=True)
                padded = torch.nn.functional.pad(call.q, (0, 0, keys - queries, 0))
                return self._attend(call, q=padded, causal=True)[:, :, keys - queries :]
        if call.window is None:
            return self._masked(call, slice(0, queries), slice(0, keys), {})
        size, shift = min(max(call.window, _BLOCK[0]), _BLOCK[1]), keys - queries
        shared: dict[tuple[int, int, int], torch.Tensor] = {}
        blocks = []
        for start in range(0, queries, size):
            rows = slice(start, min(start + size, queries))
            columns = slice(max(0, start + shift - call.window + 1), rows.stop + shift)
            blocks.append(self._masked(call, rows, columns, shared))
        return torch.cat(blocks, 2)

    def _masked(
        self, call: AttentionCall, rows: slice, columns: slice, shared: dict[tuple[int, int, int], torch.Tensor]
    ) -> torch.Tensor:
        """Return the attention of some queries to some keys, with a mask that equal blocks share."""
        piece = _pieces.part(call, rows, columns)
        hidden = piece.masked_out
        if call.causal:
            shift = call.k.shape[2] - call.q.shape[2] + rows.start - columns.start
            # Symbolic sizes cannot be dict keys.
            size = (int(rows.stop - rows.start), int(columns.stop - columns.start), int(shift))
            if size not in shared:
                shared[size] = masks.hidden(
                    slice(0, size[0]),
                    slice(0, size[1]),
                    shift,
                    causal=True,
                    window=call.window,
                    device=call.q.device,
                )
            hidden = shared[size] if hidden is None else hidden | shared[size]
        mask, nothing = _attn_mask(piece, hidden)
        result = self._attend(piece, mask=mask)
        return result.masked_fill(nothing, 0.0)

    def _attend(self, call: AttentionCall, q: torch.Tensor | None = None, **more: Any) -> torch.Tensor:
        return _attention_of_torch(call, *self._inputs(call.q if q is None else q, call.k, call.v), **more)

    def _inputs(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, bool]:
        """Return q, k and v as the kernel takes them, and whether queries share key heads."""
        q, k, v = self._supported_strides(q, k, v)
        shared = bool(q.shape[1] != k.shape[1])
        if shared and not self.shares_heads:
            k, v = (each.repeat_interleave(q.shape[1] // each.shape[1], 1) for each in (k, v))
            shared = False
        return q, k, v, shared

    @staticmethod
    def _supported_strides(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> _QKV:
        """Return the tensors with strides that the kernel supports, copied if necessary."""
        return q, k, v


def _attention_of_torch(
    call: AttentionCall,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    shared: bool,
    *,
    mask: torch.Tensor | None = None,
    causal: bool = False,
) -> torch.Tensor:
    scale = call.scale
    if scale is not None and scale < 0:  # torch's causal CPU kernel gives NaN for a negative scale
        q, scale = -q, -scale
    return scaled_dot_product_attention(q, k, v, mask, call.dropout_p, causal, scale=scale, enable_gqa=shared)


def _with_even_rows(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> _QKV:
    """Return the tensors with stride 1 in the last axis, as torch's CUDA kernels require."""
    return (
        q if q.stride()[-1] == 1 else q.contiguous(),
        k if k.stride()[-1] == 1 else k.contiguous(),
        v if v.stride()[-1] == 1 else v.contiguous(),
    )


def _loses_sums_on_cpu(call: AttentionCall) -> bool:
    """Return whether torch's fused CPU kernel may compute wrong gradients, because a row's bias is large and negative.

    The kernel keeps max + log(sum) of each row in fp32, where a large maximum absorbs the sum, and recomputes the
    probabilities from it. The gradients of a row of finfo.min are too large by a factor of the number of keys.
    """
    if call.bias is None or call.q.device.type != "cpu" or not torch.is_grad_enabled():
        return False
    if not any(each.requires_grad for each in (call.q, call.k, call.v, call.bias)):
        return False
    if not tracing.has_values(call.bias):
        return True
    # If keys are masked as well, a row may be left with large negative values only.
    hides = call.causal or call.masked_out is not None or call.window is not None or call.cu_seqlens is not None
    bias = call.bias.detach()
    largest = bias if hides or not bias.numel() else bias.amax(-1)
    return bool(((largest < _ABSORBING) & (largest > float("-inf"))).any())


def _is_torchs_own(call: AttentionCall) -> bool:
    """Return whether torch's function computes the unchanged call according to the contract."""
    if any(each is not None for each in (call.masked_out, call.bias, call.window, call.cu_seqlens, call.prefix)):
        return False
    return not call.causal or call.q.shape[2] == call.k.shape[2]


class _OnCuda(_Torch):
    """One of torch's CUDA kernels."""

    _supported_strides = staticmethod(_with_even_rows)

    def __init__(self, kernel: SDPBackend, can_use: str, *, masks: bool, shares_heads: bool) -> None:
        self.only, self.can_use, self.masks, self.shares_heads = _Only(kernel), can_use, masks, shares_heads

    def supports(self, call: AttentionCall) -> str:
        """Return "" or why this kernel does not support the call."""
        if not self.masks:
            if call.masked_out is not None or call.bias is not None:
                return "it takes no mask"
            if call.window is not None:
                return "it takes no window"
            if call.cu_seqlens is not None:
                return "it takes no packed documents"
        return self._refused(call)

    def _refused(self, call: AttentionCall) -> str:
        call = _pieces.as_wide_as_its_bias(call)
        # Causal queries are padded to the number of keys. torch checks shapes and strides, which run() makes
        # contiguous.
        q = call.q[:, :, :1].expand(-1, -1, call.k.shape[2], -1) if call.causal else call.q
        q, k, v, shared = self._inputs(q, call.k, call.v)
        given = torch.backends.cuda.SDPAParams(q, k, v, None, call.dropout_p, call.causal, shared)
        asked = getattr(torch.backends.cuda, self.can_use)
        if asked(given, False):
            return ""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            asked(given, True)
        reasons = [str(warning.message).partition(" (Triggered internally")[0] for warning in caught]
        return " ".join(" ".join(reasons).split()) or "torch rejects it"

    def _selected(self, call: AttentionCall) -> Any:
        return self.only.context()


class _Flash(_OnCuda):
    """Flash attention. Windows, packed documents and Q != K use its variable-length form."""

    def supports(self, call: AttentionCall) -> str:
        """Return "" or why flash attention does not support the call."""
        if dispatch.is_deterministic() and not dispatch.attention_gradients_repeat():
            return "its gradients are deterministic only under torch.use_deterministic_algorithms(True)"
        if call.masked_out is not None or call.bias is not None:
            return "it takes no mask"
        if self._needs_varlen(call):
            if call.dropout_p:
                return "its form for windows, packed documents and Q != K does not support dropout"
            if call.q.shape[3] % 8 or call.q.shape[3] != call.v.shape[3]:
                return f"its form for windows, packed documents and Q != K does not support head dim {call.q.shape[3]}"
            if _varlen() is None:
                return f"torch {torch.__version__} has no varlen_attn with window_size and enable_gqa"
        return self._refused(call)

    def run(self, call: AttentionCall) -> torch.Tensor:
        """Return the attention output."""
        if self._needs_varlen(call):
            return _pieces.without_blind_rows(call, _packed)
        return super().run(call)

    @staticmethod
    def _needs_varlen(call: AttentionCall) -> bool:
        crooked = call.causal and call.q.shape[2] not in (1, call.k.shape[2])
        return crooked or call.window is not None or call.cu_seqlens is not None


class _Only:
    """Reusable context that restricts torch to some kernels, and restores torch's switches.

    torch's sdpa_kernel and the functions of torch.backends.cuda would slow down small calls. The switches are global to
    the process, so threads, such as those of DataParallel, wait for each other.
    """

    _lock = threading.RLock()

    def __init__(self, *kernels: SDPBackend) -> None:
        self.kernels = list(kernels)
        self.wanted = [
            kernel in kernels
            for kernel in (
                SDPBackend.FLASH_ATTENTION,
                SDPBackend.EFFICIENT_ATTENTION,
                SDPBackend.CUDNN_ATTENTION,
                SDPBackend.MATH,
            )
        ]
        self.before: list[tuple[bool, bool, bool, bool]] = []

    def context(self) -> Any:
        """Return this context, or sdpa_kernel in compiled code."""
        return sdpa_kernel(self.kernels) if torch.compiler.is_compiling() else self

    def __enter__(self) -> None:
        self._lock.acquire()
        self.before.append(
            (
                _C._get_flash_sdp_enabled(),
                _C._get_mem_efficient_sdp_enabled(),
                _C._get_cudnn_sdp_enabled(),
                _C._get_math_sdp_enabled(),
            )
        )
        _switch(*self.wanted)

    def __exit__(self, *error: object) -> None:
        _switch(*self.before.pop())
        self._lock.release()


def _switch(flash: bool, efficient: bool, cudnn: bool, math: bool) -> None:
    _C._set_sdp_use_flash(flash)
    _C._set_sdp_use_mem_efficient(efficient)
    _C._set_sdp_use_cudnn(cudnn)
    _C._set_sdp_use_math(math)


_ANY = nullcontext()
_MATH, _REPEATABLE = _Only(SDPBackend.MATH), _Only(SDPBackend.FLASH_ATTENTION, SDPBackend.MATH)


def _varlen() -> Any:
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:  # before torch 2.10
        return None
    known = inspect.signature(varlen_attn).parameters
    return varlen_attn if {"window_size", "enable_gqa"} <= set(known) else None


def _packed(call: AttentionCall) -> torch.Tensor:
    batch, heads, queries, _ = call.q.shape
    keys = call.k.shape[2]

    def borders(length: int) -> torch.Tensor:
        return torch.arange(batch + 1, dtype=torch.int32, device=call.q.device) * length

    of_q, of_k = (borders(queries), borders(keys)) if call.cu_seqlens is None else (call.cu_seqlens,) * 2
    q, k, v = _with_even_rows(*(each.transpose(1, 2).flatten(0, 1) for each in (call.q, call.k, call.v)))
    left = -1 if call.window is None else call.window - 1
    result = _varlen()(
        q,
        k,
        v,
        of_q,
        of_k,
        queries,
        keys,
        scale=call.factor,
        window_size=(left, 0 if call.causal else -1),
        enable_gqa=heads != call.k.shape[1],
    )
    return result.unflatten(0, (batch, queries)).transpose(1, 2)


def _attn_mask(call: AttentionCall, hidden: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return torch's mask for a bias, a mask, or both, and the fully masked rows, bool [B, N, Q, 1].

    Those rows are unmasked in torch's mask, because some of its kernels would give NaN.
    """
    if call.bias is None:
        nothing = hidden.all(-1, keepdim=True)
        mask = ~hidden | nothing
    else:
        mask = call.bias if call.bias.dtype == call.q.dtype else call.bias.to(call.q.dtype)
        if hidden is not None:
            mask = torch.where(hidden, float("-inf"), mask)
        nothing = (mask == float("-inf")).all(-1, keepdim=True)
        mask = mask.masked_fill(nothing, 0.0)
    if mask.dim() == 4 and mask.shape[-1] == 1:
        mask = mask.expand(*mask.shape[:-1], call.k.shape[2])
    return mask, nothing


any_of_torch = _Torch()
flash = _Flash(SDPBackend.FLASH_ATTENTION, "can_use_flash_attention", masks=False, shares_heads=True)
efficient = _OnCuda(SDPBackend.EFFICIENT_ATTENTION, "can_use_efficient_attention", masks=True, shares_heads=False)
cudnn = _OnCuda(SDPBackend.CUDNN_ATTENTION, "can_use_cudnn_attention", masks=False, shares_heads=False)
