"""Megatron-core, as the ``megatron-core`` distribution or a checkout of Megatron-LM has it: fused operations under it.

They stand under its *local* layers, those that need neither TransformerEngine nor apex. Read off megatron-core 0.12.0,
0.14.0, 0.16.1 and 0.19.2. Each swap hands calls it does not serve to Megatron's own code.
"""

from __future__ import annotations

import types
import weakref
from typing import Any

from ascend_adapt import Patch, Symptom, hookimpl, replace, wrap

REQUIRES = "megatron-core>=0.12"
HOST = "megatron-lm"


@wrap(
    "megatron.core.transformer.dot_product_attention:DotProductAttention.forward",
    requires=REQUIRES,
    host=HOST,
    devices=("cuda", "npu"),
    why="the local attention writes and reads all scores [B, N, S, S] several times, and keeps them for the gradient",
    until="Megatron-core's local layers call a fused attention",
    without="slower",
    symptom=Symptom("torch.bmm(attention_probs, value.transpose(0, 1))"),
)
def fused_attention(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Compute the attention in one operation; query, key and value are [S, B, N, D], the result [S, B, N * D]."""
    names = ("query", "key", "value", "attention_mask", "attn_mask_type", "attention_bias", "packed_seq_params")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    if _needs_upstream(instance, given):
        return wrapped(*args, **kwargs)
    from ascend_adapt.kernels import attention

    query, key, value = (given[name].permute(1, 2, 0, 3) for name in names[:3])
    config, softmax = instance.config, instance.scale_mask_softmax
    dropout = instance.attention_dropout.p if instance.training else 0.0
    masked_out, causal, window = _mask(softmax, given["attention_mask"], query.shape[2], key.shape[2])

    def run() -> Any:
        return attention(
            query,
            key,
            value,
            masked_out=masked_out,
            causal=causal,
            window=window,
            scale=instance.softmax_scale * (softmax.scale or 1.0),
            dropout_p=dropout,
        )

    if dropout and not config.sequence_parallel:
        from megatron.core import tensor_parallel

        with tensor_parallel.get_cuda_rng_tracker().fork():
            result = run()
    else:
        result = run()
    return result.permute(2, 0, 1, 3).flatten(2)


def _needs_upstream(instance: Any, given: dict[str, Any]) -> bool:
    """Return whether the call is of a kind that only Megatron's own code knows, or refuses with its own words."""
    if given.get("packed_seq_params") is not None or given.get("attention_bias") is not None:
        return True
    if getattr(instance.config, "softmax_type", "vanilla") != "vanilla" or "attention_mask" not in given:
        return True
    window = getattr(instance.scale_mask_softmax, "window_size", None)
    return window is not None and (window[0] < 0 or window[1] != 0)


def _mask(softmax: Any, mask: Any, queries: int, keys: int) -> tuple[Any, bool, int | None]:
    """Return (masked_out, causal, window) as Megatron's unfused softmax understands its arguments.

    Its fused softmax drops a mask given to a causal layer; here a mask that hides more than the future is kept.
    """
    window = getattr(softmax, "window_size", None)
    if window is not None:
        return None, True, window[0] + 1
    if softmax.attn_mask_type.name != "causal":
        return mask, False, None
    if mask is None:
        return None, queries > 1, None
    return (None, True, None) if _is_causal(mask, queries, keys) else (mask, False, None)


_causal_masks: dict[int, tuple[Any, int, bool]] = {}


def _is_causal(mask: Any, queries: int, keys: int) -> bool:
    """Return whether the mask hides just the future; it is read once, as all layers of a step get the same tensor."""
    import torch

    known, version = _causal_masks.get(id(mask)), None if mask.is_inference() else mask._version
    if known is not None and known[0]() is mask and known[1] == version:
        return known[2]
    if tuple(mask.shape[-2:]) != (queries, keys) or mask.dtype != torch.bool:
        return False
    future = torch.ones(queries, keys, dtype=torch.bool, device=mask.device).triu_(keys - queries + 1)
    answer = bool((mask == future).all())
    if version is not None:  # whether a mask of inference_mode was written to is not told
        identity = id(mask)
        _causal_masks[identity] = (weakref.ref(mask, lambda _: _causal_masks.pop(identity, None)), version, answer)
    return answer


@wrap(
    "megatron.core.tensor_parallel.cross_entropy:vocab_parallel_cross_entropy",
    requires=REQUIRES,
    host=HOST,
    devices=("cuda", "npu"),
    why="the loss turns all logits into fp32, and keeps their softmax in fp32 for the gradient",
    until="Megatron-core's unfused loss computes from logits as they are",
    without="slower",
    symptom=Symptom(
        "vocab_parallel_logits.float()", at="megatron.core.tensor_parallel.cross_entropy:VocabParallelCrossEntropy"
    ),
)
def loss_without_a_copy(wrapped: Any, instance: None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the loss of each token, fp32 [S, B], from logits [S, B, V / TP] as they are."""
    names = ("vocab_parallel_logits", "target", "label_smoothing", "tp_group")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    if given.get("label_smoothing"):
        return wrapped(*args, **kwargs)  # its smoothing is over the columns of a rank, not over the vocabulary
    from ascend_adapt.kernels import cross_entropy

    group = given.get("tp_group")
    if group is None:
        from megatron.core.parallel_state import get_tensor_model_parallel_group

        group = get_tensor_model_parallel_group()
    # A label below 0 stands where the loss is masked: there Megatron's loss is finite, and must stay so.
    return cross_entropy(
        given["vocab_parallel_logits"],
        given["target"].clamp(min=-1),
        ignore_index=-1,
        reduction="none",
        group=group if group.size() > 1 else None,
    )


@wrap(
    "megatron.core.transformer.torch_norm:WrappedTorchNorm.__new__",
    requires=REQUIRES,
    host=HOST,
    devices="npu",
    why="torch's rms norm is several operations on an NPU",
    until="torch_npu serves torch's rms norm with its own operator",
    without="slower",
    symptom=Symptom(reason="how torch_npu serves torch's rms norm"),
)
def fused_rms_norm(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Let a new norm compute in one operation; its class and parameters stay torch's."""
    import torch

    norm = wrapped(*args, **kwargs)
    if type(norm) is torch.nn.RMSNorm and len(norm.normalized_shape) == 1:
        norm.forward = types.MethodType(rms_norm_forward, norm)
    return norm


def rms_norm_forward(self: Any, x: Any) -> Any:
    """Return what torch.nn.RMSNorm returns."""
    import torch

    from ascend_adapt.kernels import rms_norm

    return rms_norm(x, self.weight, eps=torch.finfo(x.dtype).eps if self.eps is None else self.eps)


@replace(
    "megatron.core.utils:local_multi_tensor_l2_norm",
    bodies="5b819f1c798dcf81",
    requires=REQUIRES,
    host=HOST,
    devices=("cuda", "npu"),
    why="without apex the norm of the gradients is read off the device once for each parameter",
    until="Megatron-core computes it on the device without apex too",
    without="slower",
    symptom=Symptom("torch.tensor(l2)"),
)
def norm_on_the_device(
    chunk_size: int, noop_flag: Any, tensor_lists: list[list[Any]], per_tensor: Any, *args: Any
) -> tuple[Any, None]:
    """Return the 2-norm of all tensors as one, fp32 [1], and None, as Megatron-core's does."""
    import torch

    tensors = [tensor for tensors in tensor_lists for tensor in tensors]
    norms = torch.stack([norm.float() for norm in torch._foreach_norm(tensors)])
    return torch.linalg.vector_norm(norms).reshape(1), None


@replace(
    "megatron.core.utils:local_multi_tensor_scale",
    bodies="5f6db86c5ebf6351",
    requires=REQUIRES,
    host=HOST,
    devices=("cuda", "npu"),
    why="without apex gradients are scaled, and parameters copied, in two operations for each parameter",
    until="Megatron-core uses torch's foreach operations there",
    without="slower",
    symptom=Symptom("dst.copy_(src * scale)"),
)
def scale_many(chunk_size: int, noop_flag: Any, tensor_lists: list[list[Any]], scale: Any) -> None:
    """Write each tensor of the first list, scaled, into its place in the second."""
    import torch

    source, target = tensor_lists
    if all(one is other for one, other in zip(source, target, strict=True)):
        torch._foreach_mul_(target, scale)
    else:
        scaled = source if scale == 1.0 else torch._foreach_mul(source, scale)
        torch._foreach_copy_(target, scaled)


@wrap(
    "megatron.core.optimizer:get_megatron_optimizer",
    requires=REQUIRES,
    host=HOST,
    devices="cuda",
    why="without apex and TransformerEngine the optimizer is torch's AdamW in many operations",
    until="Megatron-core asks torch for the fused one",
    without="slower",
    symptom=Symptom(
        "from torch.optim import AdamW as Adam",
        "from torch.optim import AdamW as Adam, SGD",
        at="megatron.core.optimizer",
    ),
)
def fused_adam(wrapped: Any, instance: None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Let torch's Adam and AdamW update in one operation; a choice that was made stays."""
    import torch

    made = wrapped(*args, **kwargs)
    for each in getattr(made, "chained_optimizers", [made]):
        inner: Any = getattr(each, "optimizer", None)
        if type(inner) in (torch.optim.AdamW, torch.optim.Adam):
            for group in (inner.defaults, *inner.param_groups):
                if group.get("fused") is None and group.get("foreach") is None and not group.get("capturable"):
                    group["fused"] = True
    return made


@hookimpl
def register_patches() -> list[Patch]:
    """Return the swaps."""
    return [fused_attention, fused_rms_norm, loss_without_a_copy, norm_on_the_device, scale_many, fused_adam]
