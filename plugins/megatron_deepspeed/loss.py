"""Vocabulary-parallel cross entropy without a saved softmax."""

from __future__ import annotations

from typing import Any

from ascend_adapt import Call, Symptom, wrap

from ..code_bases import BIGSCIENCE, MEGATRON_DEEPSPEED
from ..vocabulary_loss import NAMES, vocabulary_loss

WHY = "the loss keeps the fp32 softmax of all logits for the backward pass"
UNTIL = "the code base computes its loss in one operation"


@wrap(
    "megatron.core.tensor_parallel.cross_entropy:vocab_parallel_cross_entropy",
    bodies="1e5c05ff79f0ff99",
    host=MEGATRON_DEEPSPEED,
    devices=("cuda", "npu"),
    why=WHY,
    until=UNTIL,
    without="slower",
    symptom=Symptom(
        "ctx.save_for_backward(exp_logits, target_mask, masked_target_1d)",
        at="megatron.core.tensor_parallel.cross_entropy:_VocabParallelCrossEntropy",
    ),
)
def fused_loss(call: Call) -> Any:
    """Loss of each token, fp32 [S, B], from logits [S, B, V / TP]."""
    return vocabulary_loss(call, names=NAMES[:3], groups="megatron.core.parallel_state")


@wrap(
    "megatron.mpu.cross_entropy:vocab_parallel_cross_entropy",
    bodies="06e1051c99210da7",
    host=BIGSCIENCE,
    devices=("cuda", "npu"),
    why=WHY,
    until=UNTIL,
    without="slower",
    symptom=Symptom(
        "ctx.save_for_backward(exp_logits, target_mask, masked_target_1d)",
        at="megatron.mpu.cross_entropy:_VocabParallelCrossEntropy",
    ),
)
def fused_loss_mpu(call: Call) -> Any:
    """Loss of each token, fp32 [B, S], from logits [B, S, V / TP]."""
    return vocabulary_loss(call, names=NAMES[:2], groups="megatron.mpu")
