"""Restores attributes that transformers removed from tokenizers in 5.0.

``decoder`` exists with another meaning, and is not patched because training on GPT data does not read it.
"""

from __future__ import annotations

from typing import Any

from ascend_adapt import Symptom, add

from ..code_bases import GPT_NEOX, MEGATRON_DEEPSPEED


def _encoder(self: Any) -> dict[str, int]:
    """Return the vocabulary, which maps each token to its id."""
    return self.get_vocab()  # type: ignore[no-any-return]


gpt2_tokenizer_encoder = add(
    "transformers.models.gpt2.tokenization_gpt2:GPT2Tokenizer.encoder",
    value=property(_encoder),
    name="gpt2_tokenizer_encoder",
    requires="transformers>=5",
    host=(GPT_NEOX, MEGATRON_DEEPSPEED),
    why="the vocabulary is read from the attribute encoder, which transformers removed in 5.0",
    until="these code bases call get_vocab()",
    without="crash",
    symptom=Symptom(reason="the fault is that a class lacks an attribute"),
)
