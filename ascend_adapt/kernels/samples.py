"""Sample calls for `ascend-adapt kernels`: one small call of each kind that backends distinguish."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ascend_adapt.kernels.operation import KernelCall
from ascend_adapt.kernels.operators.adamw import AdamwCall
from ascend_adapt.kernels.operators.add_norm import AddNormCall
from ascend_adapt.kernels.operators.attention import AttentionCall
from ascend_adapt.kernels.operators.bias_dropout_add import BiasDropoutAddCall
from ascend_adapt.kernels.operators.cross_entropy import CrossEntropyCall
from ascend_adapt.kernels.operators.gelu import GeluCall
from ascend_adapt.kernels.operators.l2_norms import L2NormsCall
from ascend_adapt.kernels.operators.layer_norm import LayerNormCall
from ascend_adapt.kernels.operators.linear_cross_entropy import LinearCrossEntropyCall
from ascend_adapt.kernels.operators.masked_softmax import EXACT, FINITE, MaskedSoftmaxCall
from ascend_adapt.kernels.operators.rms_norm import RmsNormCall
from ascend_adapt.kernels.operators.rotary import RotaryCall
from ascend_adapt.kernels.operators.split_qkv import SplitQkvCall
from ascend_adapt.kernels.operators.swiglu import SwigluCall

DTYPES = {"cpu": ("float32", "bfloat16"), "cuda": ("bfloat16", "float16"), "npu": ("bfloat16", "float16")}


def samples(device: Any, dtype: Any) -> Iterator[tuple[str, str, KernelCall]]:
    """Yield (kernel, kind of call, call) with tensors of ``dtype`` on ``device``."""
    import torch

    generator = torch.Generator().manual_seed(1)

    def random(*shape: int, grad: bool = True, kind: Any = dtype) -> Any:
        return torch.randn(shape, generator=generator).to(device, kind).requires_grad_(grad)

    def drawn(bound: int, *shape: int) -> Any:
        return torch.randint(bound, shape, generator=generator).to(device)

    def out(*shape: int) -> Any:
        """Return a mask of every third entry and of the entire first rows."""
        mask = torch.rand(shape, generator=generator) < 0.33
        mask[..., :3, :] = True
        return mask.to(device)

    def qkv(queries: int, keys: int, width: int = 64, batch: int = 2, key_heads: int = 4) -> tuple[Any, Any, Any]:
        key = (batch, key_heads, keys, width)
        return random(batch, 4, queries, width), random(*key), random(*key)

    attention = "attention"
    yield attention, "full", AttentionCall(*qkv(64, 64), scale=0.125)
    yield attention, "causal", AttentionCall(*qkv(64, 64), causal=True, scale=0.125)
    yield attention, "causal, Q < K, grouped heads", AttentionCall(*qkv(37, 53, 80, 2, 2), causal=True, scale=0.1)
    yield attention, "causal, Q > K", AttentionCall(*qkv(53, 37), causal=True, scale=0.125)
    yield attention, "mask", AttentionCall(*qkv(64, 96), masked_out=out(2, 1, 64, 96), scale=0.125)
    bias = random(1, 4, 64, 64, grad=False)
    yield attention, "bias", AttentionCall(*qkv(64, 64), bias=bias, causal=True, scale=0.125)
    yield attention, "window", AttentionCall(*qkv(64, 64), causal=True, window=9, scale=0.125)
    borders = torch.tensor([0, 5, 40, 64], dtype=torch.int32, device=device)
    yield attention, "packed", AttentionCall(*qkv(64, 64, batch=1), causal=True, scale=0.125, cu_seqlens=borders)
    prefix = torch.tensor([9, 40])
    yield attention, "prefix", AttentionCall(*qkv(64, 64), scale=0.125, prefix=prefix)
    softmax = "masked_softmax"
    yield softmax, "causal", MaskedSoftmaxCall(random(2, 4, 64, 64), None, 0.5, True)
    yield softmax, "mask", MaskedSoftmaxCall(random(2, 4, 64, 64), out(2, 1, 64, 64), 0.5, False, EXACT)
    yield softmax, "mask that fills", MaskedSoftmaxCall(random(2, 4, 64, 64), out(2, 1, 64, 64), 0.5, False, FINITE)
    yield "rms_norm", "weight", RmsNormCall(random(3, 5, 96), random(96))
    yield "layer_norm", "weight and bias", LayerNormCall(random(3, 5, 96), random(96), random(96))
    rows = random(3, 5, 96), random(3, 5, 96), random(96), random(96)
    yield "add_norm", "LayerNorm, bias of the branch", AddNormCall(*rows, random(96))
    yield "add_norm", "RMSNorm", AddNormCall(*rows[:2], None, rows[3], rms=True)
    yield "bias_dropout_add", "bias", BiasDropoutAddCall(*rows[:3])
    yield "split_qkv", "bias", SplitQkvCall(random(2, 20, 96), 4, 4, random(96))
    yield "split_qkv", "grouped heads", SplitQkvCall(random(2, 20, 96), 4, 1)
    angles = torch.randn(1, 1, 20, 64, generator=generator)
    cos, sin = (each.to(device, dtype) for each in (angles.cos(), angles.sin()))
    yield "rotary", "halves", RotaryCall(random(2, 4, 20, 64), cos, sin)
    yield "rotary", "interleaved", RotaryCall(random(2, 4, 20, 64), cos, sin, True)
    yield "rotary", "halves, of a part", RotaryCall(random(2, 4, 20, 96), cos, sin)
    yield "swiglu", "no bias", SwigluCall(random(3, 5, 96))
    yield "swiglu", "bias", SwigluCall(random(3, 5, 96), random(96))
    yield "gelu", "tanh", GeluCall(random(3, 5, 96), None, "tanh")
    yield "gelu", "tanh of a sum with a bias", GeluCall(random(3, 5, 96), random(96), "tanh")
    labels = drawn(50, 12)
    labels[3] = -100
    yield "cross_entropy", "of logits", CrossEntropyCall(random(12, 50), labels, vocabulary=50)
    yield "cross_entropy", "of fp32 logits", CrossEntropyCall(random(12, 50, kind=torch.float32), labels, vocabulary=50)
    linear = LinearCrossEntropyCall(random(12, 32), random(50, 32), labels, vocabulary=50)
    yield "linear_cross_entropy", "mean", linear
    tensors = random(12, 32), random(50, 32), labels, random(50)
    by_token = LinearCrossEntropyCall(*tensors, label_smoothing=0.1, reduction="none", vocabulary=50)
    yield "linear_cross_entropy", "of each token, with a bias", by_token
    yield "l2_norms", "of two tensors", L2NormsCall((random(7, 5, grad=False), random(33, grad=False)))
    steps = tuple(torch.tensor(float(count)) for count in (0, 2))

    def fp32() -> tuple[Any, ...]:
        return tuple(random(*shape, grad=False, kind=torch.float32) for shape in ((7, 5), (33,)))

    squares = tuple(tensor.square() for tensor in fp32())
    narrow = tuple(tensor.to(torch.bfloat16) for tensor in fp32())
    factor, no, yes = (torch.tensor(value, device=device) for value in (0.5, 0.0, 1.0))
    of_copies = tuple(torch.zeros_like(tensor, dtype=torch.bfloat16) for tensor in fp32())
    placed = tuple(step.to(device) for step in steps)
    yield (
        "adamw",
        "16-bit gradients and copies",
        AdamwCall(fp32(), narrow, fp32(), squares, placed, 0.1, 0.9, 0.999, 1e-8, 0.01, False, factor, of_copies, no),
    )
    nan = tuple(torch.full_like(tensor, float("nan")) for tensor in narrow)
    skipped = AdamwCall(fp32(), nan, fp32(), squares, placed, 0.1, 0.9, 0.999, 1e-8, 0.01, found_inf=yes)
    yield "adamw", "a skipped step", skipped
    yield "adamw", "fp32", AdamwCall(fp32(), fp32(), fp32(), squares, steps, 0.1, 0.9, 0.999, 1e-8, 0.01)
