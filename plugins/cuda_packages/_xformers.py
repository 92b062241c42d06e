"""xformers' attention and SwiGLU on ascend_adapt.kernels. Source: the docstrings of xformers 0.0.32."""

from __future__ import annotations

from typing import Any

import torch

from ascend_adapt.errors import KernelArgumentError
from ascend_adapt.kernels import attention, swiglu


class LowerTriangularMask:
    """Causal mask, aligned to the first key."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass


def memory_efficient_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_bias: Any = None,
    p: float = 0.0,
    scale: float | None = None,
    *,
    op: Any = None,
    output_dtype: Any = None,
) -> Any:
    """Attention of query [B, S, N, D] and key, value [B, T, N, D]; [B, S, D] has one head.

    Raises:
        KernelArgumentError: the bias is neither a tensor nor a causal mask.
    """
    has_heads = query.dim() == 4
    q, k, v = ((one.transpose(1, 2) if has_heads else one[:, None]) for one in (query, key, value))
    masks: dict[str, Any] = {}
    if isinstance(attn_bias, LowerTriangularMask):
        if q.shape[2] == k.shape[2]:
            masks["causal"] = True
        else:  # The kernels align the mask to the last key.
            ahead = torch.arange(k.shape[2], device=q.device) - torch.arange(q.shape[2], device=q.device)[:, None]
            masks["masked_out"] = (ahead > 0)[None, None]
    elif isinstance(attn_bias, torch.Tensor):
        masks["bias"] = attn_bias if attn_bias.dim() == 4 else attn_bias[:, None]
    elif attn_bias is not None:
        raise KernelArgumentError(
            f"xformers: attn_bias is a {type(attn_bias).__name__}, expected a tensor or LowerTriangularMask — choose "
            "another attention in the program"
        )
    seen = attention(q, k, v, scale=scale, dropout_p=p, **masks)
    seen = seen.transpose(1, 2) if has_heads else seen[:, 0]
    return seen if output_dtype is None else seen.to(output_dtype)


def unbind(x: Any, dim: int) -> tuple[Any, ...]:
    """Return the slices of x along one axis."""
    return torch.unbind(x, dim)  # type: ignore[no-any-return]


class SwiGLU(torch.nn.Module):  # type: ignore[misc]
    """SwiGLU layer: w3(silu(w1 x) * w2 x), with w1 and w2 in one weight if packed."""

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int | None = None,
        bias: bool = True,
        *,
        _pack_weights: bool = True,
    ) -> None:
        super().__init__()
        self.w12: torch.nn.Linear | None
        if _pack_weights:
            self.w12 = torch.nn.Linear(in_features, 2 * hidden_features, bias=bias)
        else:
            self.w12 = None
            self.w1 = torch.nn.Linear(in_features, hidden_features, bias=bias)
            self.w2 = torch.nn.Linear(in_features, hidden_features, bias=bias)
        self.w3 = torch.nn.Linear(hidden_features, out_features or in_features, bias=bias)

    def forward(self, x: Any) -> Any:
        """Return the output of x [..., in_features]."""
        both = self.w12(x) if self.w12 is not None else torch.cat((self.w1(x), self.w2(x)), -1)
        return self.w3(swiglu(both))
