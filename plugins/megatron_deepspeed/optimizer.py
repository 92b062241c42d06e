"""Optimizer of deepspeedai's fork: AdamW on every device, as on a GPU."""

from __future__ import annotations

import sys
from typing import Any

from ascend_adapt import Call, Symptom, wrap

from ..code_bases import MEGATRON_DEEPSPEED


@wrap(
    "megatron.optimizer:get_megatron_optimizer",
    host=MEGATRON_DEEPSPEED,
    devices=("cpu", "npu"),
    why="on a GPU, it uses apex's Adam with decoupled weight decay; elsewhere, it uses torch's Adam without decoupling",
    until="the code base uses torch's AdamW",
    without="wrong numbers",
    symptom=Symptom("from torch.optim import Adam", at="megatron.optimizer"),
)
def decoupled_weight_decay(call: Call) -> Any:
    """Use torch's AdamW in place of torch's Adam, which matches the optimizer on a GPU."""
    import torch

    module: Any = sys.modules["megatron.optimizer"]
    if module.Adam is not torch.optim.Adam:
        return call.proceed()
    module.Adam = torch.optim.AdamW
    try:
        return call.proceed()
    finally:
        if module.Adam is torch.optim.AdamW:  # --ds-fused-adam sets DeepSpeed's Adam.
            module.Adam = torch.optim.Adam
