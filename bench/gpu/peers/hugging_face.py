"""transformers' GPT-2 or GPT-NeoX with SDPA and torch's fused AdamW: compiled under autocast, or eager in pure bf16.

The embedding is padded as in Megatron. Pure bf16 has neither fp32 master weights nor fp32 optimizer states.
"""

from __future__ import annotations

from typing import Any

from bench.gpu.clock import Clock
from bench.gpu.peers import loop


def compiled(config: Any, clock: Clock) -> None:
    """Train with fp32 weights, the full model under torch.compile, autocast to bf16."""
    import torch

    from ascend_adapt.native import device as devices

    kind, model = devices.of_this_rank().type, model_of(config)
    run: Any = torch.compile(model)

    def loss_of(tokens: Any) -> Any:
        with torch.autocast(kind, torch.bfloat16):
            return run(input_ids=tokens, labels=tokens).loss

    loop.train(config, clock, model, loss_of)


def pure_bf16(config: Any, clock: Clock) -> None:
    """Train with weights, gradients and optimizer states in bf16, eager."""
    import torch

    model = model_of(config).to(torch.bfloat16)
    loop.train(config, clock, model, lambda tokens: model(input_ids=tokens, labels=tokens).loss)


def pure_bf16_compiled(config: Any, clock: Clock) -> None:
    """Train with weights, gradients and optimizer states in bf16, the full model under torch.compile."""
    import torch

    model = model_of(config).to(torch.bfloat16)
    run: Any = torch.compile(model)
    loop.train(config, clock, model, lambda tokens: run(input_ids=tokens, labels=tokens).loss)


def model_of(config: Any) -> Any:
    """Return the model on this rank's device, for training."""
    import torch
    import transformers

    from ascend_adapt.native import device as devices

    shape = config.model
    torch.manual_seed(0)
    with devices.of_this_rank():
        return _built(transformers, config, shape).train()


def _built(transformers: Any, config: Any, shape: Any) -> Any:
    if shape.positions == "rotary":
        settings = transformers.GPTNeoXConfig(
            vocab_size=shape.padded_vocab_size,
            hidden_size=shape.hidden_size,
            num_hidden_layers=shape.num_layers,
            num_attention_heads=shape.num_heads,
            intermediate_size=shape.ffn_hidden_size,
            rotary_pct=shape.rotary_dim / shape.head_dim,
            max_position_embeddings=config.data.seq_length,
            hidden_dropout=shape.hidden_dropout,
            attention_dropout=shape.attention_dropout,
            use_cache=False,
            attn_implementation="sdpa",
        )
        return transformers.GPTNeoXForCausalLM(settings)
    settings = transformers.GPT2Config(
        vocab_size=shape.padded_vocab_size,
        n_positions=config.data.seq_length,
        n_embd=shape.hidden_size,
        n_layer=shape.num_layers,
        n_head=shape.num_heads,
        resid_pdrop=shape.hidden_dropout,
        embd_pdrop=shape.hidden_dropout,
        attn_pdrop=shape.attention_dropout,
        use_cache=False,
        attn_implementation="sdpa",
    )
    return transformers.GPT2LMHeadModel(settings)
