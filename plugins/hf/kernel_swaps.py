"""Fused operations for models of transformers.

Source: transformers 4.57, 5.0 and 5.24. For compiled code, and for calls that they do not support, the replacements use
transformers' code.
"""

from __future__ import annotations

import types
from typing import Any

from ascend_adapt import Call, Symptom, entry, wrap
from ascend_adapt.errors import KernelArgumentError

from .. import call_arguments


@wrap(
    "transformers.activations:NewGELUActivation.forward",
    bodies="a89bc8b813e51143",
    requires="transformers>=4.37",
    why="GPT-2's GELU consists of eight operations, each of which reads and writes the widest tensor of the model",
    until="transformers calls torch's gelu",
    without="slower",
    symptom=Symptom("torch.pow(input, 3.0)"),
)
def fused_new_gelu(call: Call) -> Any:
    """GELU (tanh approximation), with the shape and dtype of the input."""
    given = call_arguments.known(("input",), call)
    if given is None or _is_traced():
        return call.proceed()
    from ascend_adapt.kernels import gelu

    try:
        return gelu(given["input"], approximate="tanh")
    except KernelArgumentError:
        return call.proceed()


def attention_interface(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[Any, None]:
    """Return the attention [B, Q, N, D] and None; ``query`` is [B, N, Q, D], ``key`` and ``value`` are [B, Nk, K, D].

    If a script has registered its own attention under this name, the script's attention is called.

    torch's attention handles masks correctly on CUDA and the CPU, and only supports causal attention for equal lengths.
    On an NPU, both kinds of mask are passed to the kernel: bool (True = visible), or float (added to the scores).
    """
    import torch
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.modeling_utils import AttentionInterface

    registered = AttentionInterface._global_mapping["sdpa"]
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    causal = bool(causal) and attention_mask is None and query.shape[2] > 1
    special = any(kwargs.get(name) is not None for name in ("softcap", "position_bias", "s_aux", "cache"))
    if (
        registered is not sdpa_attention_forward
        or special
        or kwargs.get("output_attentions")
        or _is_traced()
        or query.shape[0] != key.shape[0]
        or (dtype := _dtype_of_attention(query, key, value)) is None
        or (causal and query.shape[2] != key.shape[2])
        or (attention_mask is not None and query.device.type != "npu")
    ):
        kwargs.update(dropout=dropout, scaling=scaling, is_causal=is_causal)
        return registered(module, query, key, value, attention_mask, **kwargs)  # type: ignore[no-any-return]
    from ascend_adapt.kernels import attention, masked_out_from_keep

    masked_out = bias = None
    if attention_mask is not None and attention_mask.dtype == torch.bool:
        masked_out = masked_out_from_keep(attention_mask)
    elif attention_mask is not None:
        bias = attention_mask.to(dtype)
    query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    try:
        result = attention(
            query, key, value, masked_out=masked_out, bias=bias, causal=causal, scale=scaling, dropout_p=dropout
        )
    except KernelArgumentError:
        kwargs.update(dropout=dropout, scaling=scaling, is_causal=is_causal)
        return registered(module, query, key, value, attention_mask, **kwargs)  # type: ignore[no-any-return]
    return result.transpose(1, 2).contiguous(), None


def _dtype_of_attention(query: Any, key: Any, value: Any) -> Any:
    """Return the dtype in which torch's attention would compute, or None if it would reject these tensors.

    Under autocast, rotated queries and keys are fp32, while values have 16 bits.
    """
    import torch

    kind, dtypes = query.device.type, (query.dtype, key.dtype, value.dtype)
    if kind in ("cuda", "npu", "cpu") and torch.is_autocast_enabled(kind) and torch.float64 not in dtypes:
        return torch.get_autocast_dtype(kind)
    return query.dtype if dtypes[0] == dtypes[1] == dtypes[2] else None


fused_attention = entry(
    "transformers.modeling_utils:ALL_ATTENTION_FUNCTIONS",
    "sdpa",
    attention_interface,
    present=True,
    original="transformers.integrations.sdpa_attention:sdpa_attention_forward",
    bodies=(
        "9fc7f7257dc7a869",
        "8a9be224385c1652",
        "e49a1896268cd72d",
        "ca0d2bd0e11028fe",
        "df7adcc20e851330",
        "905620861d9855d7",
        "62493f6476a3b878",
        "844b0d162c143a40",
    ),
    requires="transformers>=4.57",
    name="fused_attention",
    why="on an NPU, torch's attention may interpret a mask the other way round; on CUDA, its choice of kernel is fixed",
    until="torch_npu's attention interprets masks as torch's does, and torch chooses its kernel by measurement",
    without="slower",
    symptom=Symptom(reason="the fault is in the masks and kernels of torch and torch_npu"),
)


# Wrap the function, not its entry in LOSS_MAPPING: the Trainer checks that the entry is this function, and otherwise
# counts one token too many per row.
@wrap(
    "transformers.loss.loss_utils:ForCausalLMLoss",
    bodies=(
        "692035c611070c7f",
        "7273d6e9eaa792cb",
        "5bca92a597eee931",
        "82ea83c972bb6798",
        "b697e223a1d473a6",
        "c00386e9c9463a3c",
        "7d70010f3f407074",
    ),
    requires="transformers>=4.46",
    why="the loss copies all logits to fp32, and keeps the copy and its softmax for the backward pass",
    until="transformers computes the loss without an fp32 copy",
    without="slower",
    symptom=Symptom("logits.float()"),
)
def loss_without_fp32_copy(call: Call) -> Any:
    """Next-token loss, fp32, from logits [B, S, V] without an fp32 copy.

    If torch's cross entropy has been replaced, as Liger does, the replacement is used.
    """
    import torch

    if _is_traced() or torch.nn.functional.cross_entropy.__module__ != "torch.nn.functional":
        return call.proceed()
    if call["logits"].dtype == torch.float64:  # For these logits, transformers returns an fp32 loss.
        return call.proceed()
    try:
        return causal_lm_loss(*call.args, **call.kwargs)
    except KernelArgumentError:
        return call.proceed()  # Raises the error that callers expect, such as IndexError for a label out of range.


def causal_lm_loss(
    logits: Any,
    labels: Any,
    vocab_size: int,
    num_items_in_batch: Any = None,
    ignore_index: int = -100,
    shift_labels: Any = None,
    **kwargs: Any,
) -> Any:
    """Causal language model loss like transformers' ForCausalLMLoss, from logits [B, S, V] and labels [B, S]."""
    import torch

    from ascend_adapt.kernels import cross_entropy

    if shift_labels is None:
        shift_labels = torch.nn.functional.pad(labels, (0, 1), value=ignore_index)[..., 1:]
    flat, targets = logits.reshape(-1, vocab_size), shift_labels.to(logits.device).reshape(-1)
    if num_items_in_batch is None:
        return cross_entropy(flat, targets, ignore_index=ignore_index)
    if torch.is_tensor(num_items_in_batch):
        num_items_in_batch = num_items_in_batch.to(logits.device)
    return cross_entropy(flat, targets, ignore_index=ignore_index, reduction="sum") / num_items_in_batch


@wrap(
    "transformers.modeling_utils:PreTrainedModel.post_init",
    requires="transformers>=4.57",
    devices="cuda",
    why="with a vocabulary size such as 50257, rows of logits are unaligned, for which cuBLAS uses slow kernels",
    until="cuBLAS is as fast on unaligned rows, or transformers pads vocabularies",
    without="slower",
    symptom=Symptom(reason="the fault is in cuBLAS"),
)
def aligned_logits(call: Call) -> Any:
    """Make the output layer of a new model write aligned rows, without changing its class, parameters and hooks."""
    import torch

    result = call.proceed()
    head = call.instance.get_output_embeddings()
    if type(head) is torch.nn.Linear and head.bias is None and head.out_features % 8:
        # A bound method named forward is pickled as "the method forward of this layer".
        head.forward = types.MethodType(forward, head)
    return result


def forward(self: Any, input: Any) -> Any:
    """Linear layer; for 16-bit tensors on a GPU the output has aligned rows."""
    import torch

    weight = self.weight
    if input.device.type == "cuda" and not _is_traced():
        from ascend_adapt.kernels.operators.aligned_linear import aligned_linear, is_aligned

        if torch.is_autocast_enabled("cuda"):
            dtype = torch.get_autocast_dtype("cuda")
            input, weight = input.to(dtype), weight.to(dtype)
        if input.dtype == weight.dtype and not is_aligned(weight.shape[0], weight.dtype):
            with torch.autocast("cuda", enabled=False):
                return aligned_linear(input, weight)
    return torch.nn.functional.linear(input, self.weight)


def _is_traced() -> bool:
    """Return whether the call is compiled, exported or transformed by torch.func."""
    import torch

    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return True
    return torch._C._functorch.maybe_current_level() is not None
