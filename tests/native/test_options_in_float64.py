"""Options of the dialects that change arithmetic, beside a GPT in float64 written anew from what each line computes."""

from __future__ import annotations

import math

import pytest
import torch
from native.small_models import LENGTH, batch
from native.training_bounds import apart

from ascend_adapt.native.parallel import mesh as meshes
from ascend_adapt.native.step.trainer import Trainer
from ascend_adapt.recipes import megatron, neox

SIZES = (
    f"--num-layers 2 --hidden-size 32 --num-attention-heads 4 --seq-length {LENGTH} --max-position-embeddings {LENGTH} "
    "--attention-dropout 0 --hidden-dropout 0 --init-method-std 0.1 --train-iters 9 --data-path none --vocab-size 91 "
)
MEGATRON = SIZES + "--micro-batch-size 2 --global-batch-size 8 --lr 1e-3 --upstream-version "
NEOX = SIZES + (
    "--train_micro_batch_size_per_gpu 2 --gradient_accumulation_steps 4 --pos-emb rotary --rotary-pct 0.25 "
    "--no-weight-tying true --gpt-j-residual true small --upstream-version "
)
RMS = "--norm rmsnorm --rms_norm_epsilon 1e-2"
GATED = (
    "newest --swiglu --normalization RMSNorm --norm-epsilon 1e-2 --position-embedding-type rope --rotary-percent 0.5 "
    "--rotary-base 500 --group-query-attention --num-query-groups 2 --untie-embeddings-and-output-weights "
    "--disable-bias-linear"
)
OF_GPT2 = {"positions": "learned", "rotated": 0, "gelu": "tanh", "tied": True}
OF_NEOX = {"positions": "rotary", "rotated": 2, "gelu": "exact", "tied": False, "parallel": True}
CASES = [
    (MEGATRON + "bigscience", OF_GPT2),
    (MEGATRON + "bigscience --no-bias-gelu-fusion", OF_GPT2 | {"gelu": "exact"}),
    (MEGATRON + "v2.5 --layernorm-epsilon 0.1 --kv-channels 12", OF_GPT2 | {"eps": 0.1, "head": 12}),
    (MEGATRON + "v2.5 --onnx-safe True", OF_GPT2),
    (MEGATRON + "deepspeed --onnx-safe True", OF_GPT2 | {"gelu": "exact"}),
    (
        MEGATRON + GATED,
        {"positions": "rotary", "rotated": 4, "base": 500.0, "gelu": "swish", "tied": False, "keys": 2, "eps": 1e-2}
        | {"norm": "root of the mean and eps", "over": "tokens"},
    ),
    (NEOX + "v2.0", OF_NEOX),
    (NEOX + "v2.0 --bias-gelu-fusion true --apply_query_key_layer_scaling true", OF_NEOX | {"gelu": "tanh"}),
    (NEOX + "v2.0 --gpt_j_tied true", OF_NEOX | {"one_norm": True}),
    (NEOX + f"v2.0 {RMS}", OF_NEOX | {"norm": "root and eps", "eps": 1e-2}),
    (NEOX + f"newest {RMS}", OF_NEOX | {"norm": "root of the mean and eps", "eps": 1e-2}),
    (NEOX + "newest --num_kv_heads 2 --activation swiglu", OF_NEOX | {"keys": 2, "gelu": "swish"}),
]


def norm(weights, name, x, how):
    eps, weight = how.get("eps", 1e-5), weights[f"{name}.weight"]
    mean = x.square().mean(-1, keepdim=True)
    if how.get("norm") == "root and eps":
        return x / (mean.sqrt() + eps) * weight
    if how.get("norm") == "root of the mean and eps":
        return x / (mean + eps).sqrt() * weight
    x = x - x.mean(-1, keepdim=True)
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight + weights[f"{name}.bias"]


def linear(weights, name, x):
    return x @ weights[f"{name}.weight"].t() + weights.get(f"{name}.bias", 0.0)


def turned(x, how):
    """Turn the first ``rotated`` of the last axis by position; pairs are its halves."""
    half = how["rotated"] // 2
    speeds = how.get("base", 10000.0) ** -(torch.arange(half, dtype=torch.float64) / max(half, 1))
    angles = torch.arange(x.shape[2], dtype=torch.float64)[:, None] * speeds
    one, two, rest = x.split((half, half, x.shape[3] - 2 * half), -1)
    return torch.cat([one * angles.cos() - two * angles.sin(), two * angles.cos() + one * angles.sin(), rest], -1)


def attention(weights, name, x, how, heads=4):
    size, length, width = x.shape
    keys, head = how.get("keys", heads), how.get("head", width // heads)
    fused = linear(weights, f"{name}.query_key_value", x).view(size, length, keys, heads // keys + 2, head)
    query = fused[:, :, :, :-2].reshape(size, length, heads, head).transpose(1, 2)
    key, value = (fused[:, :, :, which].repeat_interleave(heads // keys, 2).transpose(1, 2) for which in (-2, -1))
    scores = turned(query, how) @ turned(key, how).transpose(2, 3) / math.sqrt(head)
    later = torch.ones(length, length, dtype=torch.bool).triu(1)
    seen = scores.masked_fill(later, -math.inf).softmax(-1) @ value
    return linear(weights, f"{name}.dense", seen.transpose(1, 2).flatten(2))


def mlp(weights, name, x, how):
    up = linear(weights, f"{name}.dense_h_to_4h", x)
    if how["gelu"] == "swish":
        gate = linear(weights, f"{name}.gate", x)
        inner = gate / (1 + (-gate).exp()) * up
    elif how["gelu"] == "tanh":
        inner = up / 2 * (1 + (math.sqrt(2 / math.pi) * (up + 0.044715 * up**3)).tanh())
    else:
        inner = up / 2 * (1 + torch.erf(up / math.sqrt(2)))
    return linear(weights, f"{name}.dense_4h_to_h", inner)


def losses(weights, tokens, labels, how):
    """Return the loss of each token [B, S]."""
    x = weights["embedding.words.weight"][tokens]
    if how["positions"] == "learned":
        x = x + weights["embedding.positions.weight"]
    for layer in ("layers.0", "layers.1"):
        normed = norm(weights, f"{layer}.input_norm", x, how)
        attended = attention(weights, f"{layer}.attention", normed, how)
        if not how.get("parallel"):
            x, attended = x + attended, 0.0
        if not how.get("one_norm"):
            normed = norm(weights, f"{layer}.post_attention_norm", x, how)
        x = x + attended + mlp(weights, f"{layer}.mlp", normed, how)
    table = weights["embedding.words.weight" if how["tied"] else "head.weight"]
    logits = norm(weights, "final_norm", x, how) @ table.t()
    return logits.logsumexp(-1) - logits.gather(-1, labels[..., None])[..., 0]


@pytest.mark.parametrize(("words", "how"), CASES, ids=[words.split("--upstream-version ")[1] for words, _ in CASES])
def test_loss_and_gradient(tmp_path, words, how):
    (tmp_path / "small.yml").write_text("optimizer: {type: Adam, params: {lr: 1e-3}}")
    dialect = neox if " small " in words else megatron
    settings, _ = dialect.read(words.replace(" small ", f" {tmp_path}/small.yml ").split()).build(1)
    trainer = Trainer(settings, meshes.single(torch.device("cpu")))
    weights = {one.name: one.local.double().requires_grad_() for one in trainer.parameters}
    given = batch(0, settings)
    each = losses(weights, given["tokens"], given["labels"], how) * given["loss_mask"]
    micro_batches = each.view(4, -1).sum(1) / given["loss_mask"].view(4, -1).sum(1)
    micro_batches.mean().backward()
    expected = each.sum() / given["loss_mask"].sum() if how.get("over") == "tokens" else micro_batches.mean()
    step = trainer.step(given, 4, 1e-3, 0.0)
    assert step.loss == pytest.approx(float(expected.detach()), rel=apart(settings.model, LENGTH))
    gradient = torch.cat([one.grad.flatten() for one in weights.values()])
    assert step.grad_norm == pytest.approx(float(gradient.norm()), rel=apart(settings.model, LENGTH))
