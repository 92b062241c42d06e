"""Applies masks that are passed to causal attention together with causality, instead of dropping or rejecting them."""

from __future__ import annotations

from typing import Any

from ascend_adapt import Call, Symptom, wrap

from .. import call_arguments
from ..code_bases import BIGSCIENCE, MEGATRON_DEEPSPEED

TARGET = "megatron.model.fused_softmax:FusedScaleMaskSoftmax.forward"
UNTIL = "the causal softmax applies the mask"


@wrap(
    TARGET,
    host=MEGATRON_DEEPSPEED,
    why="the fused causal softmax drops the mask: in fp16 and bf16 --reset-attention-mask has no effect",
    symptom=Symptom(
        "ScaledUpperTriangMaskedSoftmax.apply(input, scale)",
        at="megatron.model.fused_softmax:FusedScaleMaskSoftmax.forward_fused_softmax",
    ),
    until=UNTIL,
    without="wrong numbers",
)
def masked_causal_softmax(call: Call) -> Any:
    """Attention probabilities [B, N, Q, K] under the mask and causality."""
    from ascend_adapt.kernels.masks import is_causal

    given = call_arguments.expected("megatron_deepspeed.masked_causal_softmax", ("input", "mask"), call)
    mask, (queries, keys) = given["mask"], given["input"].shape[-2:]
    if mask is None or call.instance.attn_mask_type.name != "causal" or is_causal(mask, queries, keys):
        return call.proceed()
    return _probabilities(call.instance, given["input"], mask)


@wrap(
    TARGET,
    host=BIGSCIENCE,
    why="the causal softmax asserts that no mask is given, but pretrain_gpt.py passes one; without the assertion, "
    "the mask would be dropped",
    symptom=Symptom("assert mask is None", at="megatron.model.fused_softmax:FusedScaleMaskSoftmax"),
    until=UNTIL,
    without="wrong numbers",
)
def masked_causal_softmax_asserted(call: Call) -> Any:
    """Attention probabilities [B, N, Q, K] under the mask and causality."""
    from ascend_adapt.kernels.masks import is_causal

    given = call_arguments.expected("megatron_deepspeed.masked_causal_softmax_asserted", ("input", "mask"), call)
    mask, (queries, keys) = given["mask"], given["input"].shape[-2:]
    if mask is None or call.instance.attn_mask_type.name != "causal":
        return call.proceed()
    if queries == keys and is_causal(mask, queries, keys):
        return call.wrapped(given["input"], None)
    return _probabilities(call.instance, given["input"], mask)


@wrap(
    "megatron.model.gpt_model:GPTModelPipe.__init__",
    host=BIGSCIENCE,
    why="with --deepspeed, a causal mask replaces the mask of the batch, so --reset-attention-mask has no effect",
    until="pretrain_gpt.py checks --reset-attention-mask before it declares attention purely causal",
    without="wrong numbers",
    symptom=Symptom(
        "getattr(self._args, 'pretrain_causal_attention', False)",
        at="megatron.model.language_model:EmbeddingPipe.forward",
    ),
)
def pipeline_attention_mask(call: Call) -> Any:
    """Pass the mask of each batch from layer to layer if it masks more than future positions."""
    from megatron import get_args

    of_run = get_args()
    if of_run.reset_attention_mask:
        of_run.pretrain_causal_attention = False
    return call.proceed()


def _probabilities(softmax: Any, scores: Any, mask: Any) -> Any:
    """Softmax of scores [B, N, Q, K] under ``mask`` [B or 1, 1, Q, K] (True = hidden) and causality."""
    from ascend_adapt.kernels import masked_softmax

    return masked_softmax(scores, masked_out=mask, scale=softmax.scale or 1.0, causal=True)
