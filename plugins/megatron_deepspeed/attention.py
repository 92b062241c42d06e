"""The unfused attention: shapes that torch refuses, and one operation for it where there is one."""

from __future__ import annotations

from typing import Any

from ascend_adapt import Symptom, wrap

from ..code_bases import MEGATRON_DEEPSPEED


@wrap(
    "megatron.model.transformer:CoreAttention.forward",
    host=MEGATRON_DEEPSPEED,
    why="it takes views of query, key and value that are not contiguous, and torch refuses them",
    until="the code base reshapes them",
    without="crash",
    symptom=Symptom("query_layer.view(output_size[2], output_size[0] * output_size[1], -1)"),
)
def contiguous_attention(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Compute the attention of query, key and value [S, B, N, D], each made contiguous."""
    query, key, value, *others = args
    return wrapped(query.contiguous(), key.contiguous(), value.contiguous(), *others, **kwargs)


PATCHES = (contiguous_attention,)
