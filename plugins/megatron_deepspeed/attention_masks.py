"""Masks that a causal attention is given: neither dropped nor refused, but hiding what they hide besides the future."""

from __future__ import annotations

from typing import Any

from ascend_adapt import Symptom, wrap

from .. import call_arguments
from ..code_bases import BIGSCIENCE, MEGATRON_DEEPSPEED

TARGET = "megatron.model.fused_softmax:FusedScaleMaskSoftmax.forward"
UNTIL = "the causal softmax takes a mask"


@wrap(
    TARGET,
    host=MEGATRON_DEEPSPEED,
    why="the fused causal softmax drops the mask: in fp16 and bf16 --reset-attention-mask is without effect",
    symptom=Symptom(
        "ScaledUpperTriangMaskedSoftmax.apply(input, scale)",
        at="megatron.model.fused_softmax:FusedScaleMaskSoftmax.forward_fused_softmax",
    ),
    until=UNTIL,
    without="wrong numbers",
)
def mask_and_causal(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the probabilities [B, N, Q, K]; what the mask or causality hides is hidden."""
    from ascend_adapt.kernels.masks import is_causal

    given = call_arguments.expected("megatron_deepspeed.mask_and_causal", ("input", "mask"), args, kwargs)
    mask, (queries, keys) = given["mask"], given["input"].shape[-2:]
    if mask is None or instance.attn_mask_type.name != "causal" or is_causal(mask, queries, keys):
        return wrapped(*args, **kwargs)
    return _probabilities(instance, given["input"], mask)


@wrap(
    TARGET,
    host=BIGSCIENCE,
    why="the causal softmax asserts that there is no mask, and pretrain_gpt.py gives it one; without the assertion it "
    "would be dropped",
    symptom=Symptom("assert mask is None", at="megatron.model.fused_softmax:FusedScaleMaskSoftmax"),
    until=UNTIL,
    without="wrong numbers",
)
def mask_and_causal_asserted(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the probabilities [B, N, Q, K]; what the mask or causality hides is hidden."""
    from ascend_adapt.kernels.masks import is_causal

    given = call_arguments.expected("megatron_deepspeed.mask_and_causal_asserted", ("input", "mask"), args, kwargs)
    mask, (queries, keys) = given["mask"], given["input"].shape[-2:]
    if mask is None or instance.attn_mask_type.name != "causal":
        return wrapped(*args, **kwargs)
    if queries == keys and is_causal(mask, queries, keys):
        return wrapped(given["input"], None)
    return _probabilities(instance, given["input"], mask)


@wrap(
    "megatron.model.gpt_model:GPTModelPipe.__init__",
    host=BIGSCIENCE,
    why="with --deepspeed the mask is replaced by a causal one, so that --reset-attention-mask is without effect",
    until="pretrain_gpt.py asks for it before it says that attention is purely causal",
    without="wrong numbers",
    symptom=Symptom(
        "getattr(self._args, 'pretrain_causal_attention', False)",
        at="megatron.model.language_model:EmbeddingPipe.forward",
    ),
)
def reset_mask_goes_down_the_pipe(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Let the mask of each batch go from layer to layer where it hides more than the future."""
    from megatron import get_args

    of_run = get_args()
    if of_run.reset_attention_mask:
        of_run.pretrain_causal_attention = False
    return wrapped(*args, **kwargs)


def _probabilities(softmax: Any, scores: Any, mask: Any) -> Any:
    """Return the softmax of scores [B, N, Q, K] under ``mask`` [B or 1, 1, Q, K] (True is hidden) and causality."""
    from ascend_adapt.kernels import masked_softmax

    return masked_softmax(scores, masked_out=mask, scale=softmax.scale or 1.0, causal=True)
