"""Arguments of all versions of the operator, under uniform names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch

_OTHER_NAMES = {"pre_tockens": "pre_tokens", "next_tockens": "next_tokens", "scale_value": "scale"}
# Arguments that the kernels read themselves, or that have no effect on the result: the way in which the dropout mask is
# generated, and results of the forward pass that the gradient does not need.
_OTHERS = (
    *("dy", "softmax_max", "softmax_sum", "seed", "offset", "dropout_mask"),
    *("gen_mask_parallel", "sync", "softmax_in", "attention_in", "numels"),
)


@dataclass(frozen=True)
class Arguments:
    """The arguments that arithmetic and limits use. The last eight have defaults for releases that lack them."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    head_num: int
    input_layout: str
    pse: torch.Tensor | None
    padding_mask: torch.Tensor | None
    atten_mask: torch.Tensor | None
    scale: float
    keep_prob: float
    pre_tokens: int
    next_tokens: int
    inner_precise: int
    prefix: Sequence[int] | None
    actual_seq_qlen: Sequence[int] | torch.Tensor | None
    actual_seq_kvlen: Sequence[int] | torch.Tensor | None
    sparse_mode: int
    softmax_layout: str = ""
    sink: torch.Tensor | None = None
    query_rope: torch.Tensor | None = None
    key_rope: torch.Tensor | None = None
    pse_type: int = 1
    q_start_idx: list[int] | None = None
    kv_start_idx: list[int] | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Arguments:
        """Convert the arguments of one version's call."""
        return cls(**{name: value for name, value in by_one_name(given).items() if name in _NAMES})


def by_one_name(given: Mapping[str, Any]) -> dict[str, Any]:
    """Rename the arguments of one version to the names of this module."""
    return {_OTHER_NAMES.get(name, name): value for name, value in given.items()}


_NAMES = frozenset(field.name for field in fields(Arguments))
TAKEN = frozenset((*_NAMES, *_OTHER_NAMES, *_OTHERS))
"""Every argument name, of any version, that the kernels support."""
