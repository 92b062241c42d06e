"""Fused operations for Megatron-core's *local* layers, which need neither TransformerEngine nor apex.

Source: megatron-core 0.12.0, 0.14.0, 0.16.1 and 0.19.2. For calls that they do not support, the replacements use
Megatron's code. A replacement of a complete function lists the function bodies for which it was written, because a
user's edits of the function would otherwise be lost.
"""

from __future__ import annotations

import functools
import types
from typing import Any

from ascend_adapt import Call, Symptom, wrap

from .. import call_arguments
from ..fused_attention import attention_with_dropout
from ..vocabulary_loss import NAMES, vocabulary_loss
from .releases import HOST, REQUIRES


@wrap(
    "megatron.core.transformer.dot_product_attention:DotProductAttention.forward",
    bodies=("9e3d602b43772c30", "577569a8501026e3", "482f9891555fcea5"),
    requires=REQUIRES,
    host=HOST,
    devices=("cuda", "npu"),
    why="local attention reads and writes all scores [B, N, S, S] several times and keeps them for the backward pass",
    until="Megatron-core's local layers call a fused attention",
    without="slower",
    symptom=Symptom("torch.bmm(attention_probs, value.transpose(0, 1))"),
)
def fused_attention(call: Call) -> Any:
    """Fused attention; query, key and value are [S, B, N, D], the result is [S, B, N * D]."""
    names = ("query", "key", "value", "attention_mask", "attn_mask_type", "attention_bias", "packed_seq_params")
    given = call_arguments.known(names, call)
    attention = call.instance
    if given is None or _needs_upstream(attention, given):
        return call.proceed()
    query, key, value = (given[name].permute(1, 2, 0, 3) for name in names[:3])
    softmax = attention.scale_mask_softmax
    dropout = attention.attention_dropout.p if attention.training else 0.0
    masked_out, causal, window = _mask(softmax, given["attention_mask"], query.shape[2], key.shape[2])

    result = attention_with_dropout(
        query,
        key,
        value,
        masked_out=masked_out,
        causal=causal,
        window=window,
        scale=attention.softmax_scale * (softmax.scale or 1.0),
        dropout_p=dropout,
        rng=None if attention.config.sequence_parallel else "megatron.core.tensor_parallel",
    )
    # Contiguous like upstream's result; flash attention's result is [B, S, N, D] in memory.
    return result.permute(2, 0, 1, 3).flatten(2).contiguous()


def _needs_upstream(instance: Any, given: dict[str, Any]) -> bool:
    """Return whether to call Megatron's code, which alone supports the call or rejects it with Megatron's message."""
    if given.get("packed_seq_params") is not None or given.get("attention_bias") is not None:
        return True
    if getattr(instance.config, "softmax_type", "vanilla") != "vanilla" or "attention_mask" not in given:
        return True
    window = getattr(instance.scale_mask_softmax, "window_size", None)
    return window is not None and (window[0] < 0 or window[1] != 0)


def _mask(softmax: Any, mask: Any, queries: int, keys: int) -> tuple[Any, bool, int | None]:
    """Return (masked_out, causal, window) with the meaning of Megatron's unfused softmax.

    Megatron's fused softmax drops the mask of a causal layer; a mask of more than future positions is kept here.
    """
    window = getattr(softmax, "window_size", None)
    if window is not None:
        return None, True, window[0] + 1
    if softmax.attn_mask_type.name != "causal":
        return mask, False, None
    if mask is None:
        return None, queries > 1, None
    from ascend_adapt.kernels.masks import is_causal

    return (None, True, None) if is_causal(mask, queries, keys) else (mask, False, None)


@wrap(
    "megatron.core.tensor_parallel.cross_entropy:vocab_parallel_cross_entropy",
    bodies=("1e5c05ff79f0ff99", "ae7b5ed7c5b47c9f"),
    requires=REQUIRES,
    host=HOST,
    devices=("cuda", "npu"),
    why="the loss copies all logits to fp32, and keeps their fp32 softmax for the backward pass",
    until="Megatron-core's unfused loss works without an fp32 copy",
    without="slower",
    symptom=Symptom(
        "vocab_parallel_logits.float()", at="megatron.core.tensor_parallel.cross_entropy:VocabParallelCrossEntropy"
    ),
)
def loss_without_fp32_copy(call: Call) -> Any:
    """Loss of each token, fp32 [S, B], from logits [S, B, V / TP] without an fp32 copy."""
    return vocabulary_loss(call, names=NAMES, groups="megatron.core.parallel_state")


@wrap(
    "megatron.core.fusions.fused_bias_dropout:bias_dropout_add_fused_train",
    bodies="8a23ecec982da302",
    requires=REQUIRES,
    host=HOST,
    devices="cuda",
    why="calling a compiled graph takes longer on the host than the fused kernel, forward and backward",
    until="calling a compiled graph takes no longer than launching a kernel",
    without="slower",
    symptom=Symptom("return _bias_dropout_add_func(x_with_bias, residual, prob, True)"),
)
def fused_bias_dropout_add(call: Call) -> Any:
    """Return residual + dropout(x + bias).

    The seed is drawn from the current generator, whose state Megatron restores before it recomputes activations.
    """
    given = call_arguments.known(("x_with_bias", "residual", "prob"), call)
    if given is None or len(given) < 3:
        return call.proceed()
    (x, bias), residual, prob = given["x_with_bias"], given["residual"], given["prob"]
    if x.shape != residual.shape or x.dtype != residual.dtype or not 0 <= prob < 1 or not _has_kernel(x, bias):
        return call.proceed()
    import torch

    from ascend_adapt.kernels import bias_dropout_add

    seed = torch.randint(2**62, (1,), device=x.device) if prob else None
    return bias_dropout_add(residual, x, bias, dropout_p=prob, seed=seed)


@wrap(
    "megatron.core.fusions.fused_bias_gelu:bias_gelu_impl",
    requires=REQUIRES,
    host=HOST,
    devices="cuda",
    why="calling two compiled graphs takes longer on the host than the fused kernels, and the gradient of the bias is "
    "summed in a separate pass",
    until="calling a compiled graph takes no longer than launching a kernel",
    without="slower",
    symptom=Symptom(
        "x * 0.5 * (1.0 + torch.tanh(0.79788456 * x * (1 + 0.044715 * x * x)))",
        at="megatron.core.fusions.fused_bias_gelu:bias_gelu",
    ),
)
def fused_bias_gelu(call: Call) -> Any:
    """Return GELU(input + bias) by the tanh approximation. In fp32, its constants are those of Megatron."""
    given = call_arguments.known(("input", "bias"), call)
    if given is None or given.get("bias") is None or not _has_kernel(given["input"], given["bias"]):
        return call.proceed()
    from ascend_adapt.kernels import gelu

    return gelu(given["input"], given["bias"], approximate="tanh")


def _has_kernel(x: Any, bias: Any) -> bool:
    """Return whether a fused kernel, not the reference, would compute this. Traced code keeps upstream's operators."""
    import torch

    if torch.compiler.is_compiling() or x.dtype.itemsize > 4 or x.numel() == 0 or not _fuses(x.device.type):
        return False
    return bias is None or (bias.dtype == x.dtype and bias.shape == x.shape[-1:])


@functools.cache
def _fuses(device_type: str) -> bool:
    from ascend_adapt.kernels import fuses

    return fuses(device_type)


@wrap(
    "megatron.core.transformer.torch_norm:WrappedTorchNorm.__new__",
    requires=REQUIRES,
    host=HOST,
    devices="cuda",
    why="torch's layer norm spends most of its time on the gradients of weight and bias",
    until="torch computes these gradients in the same pass as the gradient of the input",
    without="slower",
    symptom=Symptom(reason="the fault is in torch"),
)
def fused_layer_norm(call: Call) -> Any:
    """Make a new layer norm use the kernel that measures fastest. Its class and parameters stay torch's."""
    import torch

    norm = call.proceed()
    if type(norm) is torch.nn.LayerNorm and len(norm.normalized_shape) == 1:
        norm.forward = _method_of(norm, layer_norm_forward)
    return norm


def _method_of(norm: Any, forward: Any) -> types.MethodType:
    """Return ``forward`` as a method of a norm. pickle stores its name only, and so finds torch's method."""
    forward.__name__ = "forward"
    return types.MethodType(forward, norm)


def layer_norm_forward(self: Any, x: Any) -> Any:
    """Return the layer norm of ``x``. Under autocast it is torch's, whose result is fp32."""
    import torch

    from ascend_adapt.kernels import layer_norm

    if torch.is_autocast_enabled(x.device.type) or x.shape[-1] != self.normalized_shape[0]:
        return torch.nn.LayerNorm.forward(self, x)
    return layer_norm(x, self.weight, self.bias, eps=self.eps)


@wrap(
    "megatron.core.transformer.torch_norm:WrappedTorchNorm.__new__",
    requires=REQUIRES,
    host=HOST,
    devices="npu",
    why="torch's RMS norm consists of several operations on an NPU",
    until="torch_npu runs torch's RMS norm as a single operator",
    without="slower",
    symptom=Symptom(reason="the fault is in torch_npu"),
)
def fused_rms_norm(call: Call) -> Any:
    """Make a new norm compute in one operation; the class and parameters remain torch's."""
    import torch

    norm = call.proceed()
    if type(norm) is torch.nn.RMSNorm and len(norm.normalized_shape) == 1:
        norm.forward = _method_of(norm, rms_norm_forward)
    return norm


def rms_norm_forward(self: Any, x: Any) -> Any:
    """RMS norm like torch.nn.RMSNorm."""
    import torch

    from ascend_adapt.kernels import rms_norm

    return rms_norm(x, self.weight, eps=torch.finfo(x.dtype).eps if self.eps is None else self.eps)
