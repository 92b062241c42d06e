"""GPT-2 as the layer list of a DeepSpeed pipeline.  B batch, S sequence, H hidden, N heads, V padded vocabulary."""

import math

import torch
import torch.nn.functional as F
from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec
from torch import Tensor, nn

INIT_STD = 0.02


class WordEmbedding(nn.Embedding):
    """Token ids [B, S] to hidden states [B, S, H]; the same weight is the output layer of the last stage."""

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=INIT_STD)


class PositionEmbedding(nn.Module):
    """Adds a learned vector for each position to [B, S, H]."""

    def __init__(self, seq_length: int, hidden_size: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(seq_length, hidden_size).normal_(std=INIT_STD))

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + self.weight[: hidden.size(1)]


class SelfAttention(nn.Module):
    """Causal multi-head attention, [B, S, H] to [B, S, H]."""

    def __init__(self, hidden_size: int, num_heads: int, output_std: float):
        super().__init__()
        self.num_heads = num_heads
        self.query_key_value = linear(hidden_size, 3 * hidden_size, INIT_STD)
        self.dense = linear(hidden_size, hidden_size, output_std)

    def forward(self, hidden: Tensor) -> Tensor:
        qkv = self.query_key_value(hidden).unflatten(-1, (3, self.num_heads, -1))  # [B, S, 3, N, H/N]
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        context = F.scaled_dot_product_attention(query, key, value, is_causal=True)  # [B, N, S, H/N]
        return self.dense(context.transpose(1, 2).flatten(2))


class TransformerLayer(nn.Module):
    """One pre-LayerNorm GPT-2 block, [B, S, H] to [B, S, H]."""

    def __init__(self, hidden_size: int, num_heads: int, num_layers: int):
        super().__init__()
        # Each layer adds two residual branches; scaling them down keeps the sum's variance independent of depth.
        output_std = INIT_STD / math.sqrt(2 * num_layers)
        self.input_layernorm = nn.LayerNorm(hidden_size)
        self.attention = SelfAttention(hidden_size, num_heads, output_std)
        self.post_attention_layernorm = nn.LayerNorm(hidden_size)
        self.mlp = nn.Sequential(
            linear(hidden_size, 4 * hidden_size, INIT_STD),
            nn.GELU(approximate="tanh"),
            linear(4 * hidden_size, hidden_size, output_std),
        )

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = hidden + self.attention(self.input_layernorm(hidden))
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


def linear(in_features: int, out_features: int, std: float) -> nn.Linear:
    """A linear layer with N(0, std) weights and zero bias."""
    layer = nn.Linear(in_features, out_features)
    nn.init.normal_(layer.weight, std=std)
    nn.init.zeros_(layer.bias)
    return layer


def output_logits(embedding: WordEmbedding, hidden: Tensor) -> Tensor:
    """Hidden states [B, S, H] to logits [B, S, V] through the tied word embedding."""
    return F.linear(hidden, embedding.weight)


def lm_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross entropy of logits [B, S, V] at the next tokens [B, S]."""
    return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


def gpt2_pipeline(
    *,
    num_layers: int,
    hidden_size: int,
    num_attention_heads: int,
    seq_length: int,
    padded_vocab_size: int,
    num_stages: int,
    seed: int,
) -> PipelineModule:
    """GPT-2 in `num_stages` stages with the same number of transformer layers."""
    embedding = (WordEmbedding, padded_vocab_size, hidden_size)
    layers = [
        TiedLayerSpec("word_embedding", *embedding),
        LayerSpec(PositionEmbedding, seq_length, hidden_size),
        *(LayerSpec(TransformerLayer, hidden_size, num_attention_heads, num_layers) for _ in range(num_layers)),
        LayerSpec(nn.LayerNorm, hidden_size),
        TiedLayerSpec("word_embedding", *embedding, forward_fn=output_logits),
    ]
    # Each layer has its own seed. Otherwise every stage would draw the same weights, and the model would depend on the
    # number of stages.
    return PipelineModule(
        layers,
        num_stages=num_stages,
        loss_fn=lm_loss,
        partition_method="type:TransformerLayer",
        seed_layers=True,
        seed_fn=torch.manual_seed,  # DeepSpeed's passes a numpy integer to random.seed, which Python 3.11 rejects
        base_seed=seed,
    )
