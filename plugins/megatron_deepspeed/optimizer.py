"""deepspeedai's optimizer, which is another one on a GPU than elsewhere."""

from __future__ import annotations

import sys
from typing import Any

from ascend_adapt import Symptom, wrap

from ..code_bases import MEGATRON_DEEPSPEED


@wrap(
    "megatron.optimizer:get_megatron_optimizer",
    host=MEGATRON_DEEPSPEED,
    devices=("cpu", "npu"),
    why="on a GPU its Adam is apex's, whose weight decay is decoupled; elsewhere it is torch's, where it is not",
    until="the code base asks torch for AdamW",
    without="wrong numbers",
    symptom=Symptom("from torch.optim import Adam", at="megatron.optimizer"),
)
def decoupled_weight_decay(wrapped: Any, instance: None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Make the optimizer that a GPU has: torch's AdamW where torch's Adam would be taken."""
    import torch

    module: Any = sys.modules["megatron.optimizer"]
    if module.Adam is not torch.optim.Adam:
        return wrapped(*args, **kwargs)
    module.Adam = torch.optim.AdamW
    try:
        return wrapped(*args, **kwargs)
    finally:
        if module.Adam is torch.optim.AdamW:  # --ds-fused-adam puts DeepSpeed's there
            module.Adam = torch.optim.Adam
