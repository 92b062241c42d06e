"""A minimal GPT-2 in plain PyTorch: SDPA, one torch.compile of the full model, autocast to bf16, fused AdamW.

Uses the installed torch and no other package. Weights are fp32, activations bf16, the head is tied.
"""

from __future__ import annotations

from typing import Any

from bench.gpu.clock import Clock
from bench.gpu.peers import loop


def train(config: Any, clock: Clock) -> None:
    """Train the compiled model."""
    import torch

    from ascend_adapt.native import device as devices

    device, model = devices.of_this_rank(), model_of(config)
    compiled = torch.compile(model)

    def loss_of(tokens: Any) -> Any:
        with torch.autocast(device.type, torch.bfloat16):
            return compiled(tokens)

    loop.train(config, clock, model, loss_of)


def model_of(config: Any) -> Any:
    """Return the model on this rank's device, for training; it returns the loss of token ids."""
    import torch
    from torch import nn
    from torch.nn import functional

    from ascend_adapt.native import device as devices

    shape, device = config.model, devices.of_this_rank()
    width, heads = shape.hidden_size, shape.num_heads

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: Any) -> Any:
            batch, length, _ = x.shape
            q, k, v = self.qkv(self.norm_1(x)).split(width, 2)
            q, k, v = (each.view(batch, length, heads, width // heads).transpose(1, 2) for each in (q, k, v))
            drop = shape.attention_dropout if self.training else 0.0
            y = functional.scaled_dot_product_attention(q, k, v, dropout_p=drop, is_causal=True)
            x = x + self._dropped(self.out(y.transpose(1, 2).reshape(batch, length, width)))
            return x + self._dropped(self.down(functional.gelu(self.up(self.norm_2(x)), approximate="tanh")))

        def _dropped(self, x: Any) -> Any:
            return functional.dropout(x, shape.hidden_dropout, self.training)

    class Minimal(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(shape.padded_vocab_size, width)
            self.places = nn.Embedding(config.data.seq_length, width)
            self.blocks = nn.ModuleList([Block() for _ in range(shape.num_layers)])
            self.norm = nn.LayerNorm(width)
            self.head = nn.Linear(width, shape.padded_vocab_size, bias=False)
            self.apply(self._initialise)
            self.head.weight = self.words.weight

        def _initialise(self, module: Any) -> None:
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

        def forward(self, tokens: Any) -> Any:
            x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
            x = functional.dropout(x, shape.hidden_dropout, self.training)
            for block in self.blocks:
                x = block(x)
            logits = self.head(self.norm(x))[:, :-1]
            return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    torch.manual_seed(0)
    return Minimal().to(device).train()
