"""Attributes that the tokenizers of transformers lost in 5.0."""

from __future__ import annotations

from typing import Any

from ascend_adapt import Patch, Symptom, add

from ..code_bases import GPT_NEOX, MEGATRON_DEEPSPEED


def _encoder(self: Any) -> dict[str, int]:
    """Return the number of each token."""
    return self.get_vocab()  # type: ignore[no-any-return]


def _decoder(self: Any) -> dict[int, str]:
    """Return the token of each number."""
    return {number: token for token, number in self.get_vocab().items()}


def _added(name: str, function: Any) -> Patch:
    return add(
        f"transformers.models.gpt2.tokenization_gpt2:GPT2Tokenizer.{name}",
        value=property(function),
        name=f"gpt2_tokenizer_{name}",
        requires="transformers>=5",
        host=(GPT_NEOX, MEGATRON_DEEPSPEED),
        why=f"the vocabulary is read off its attribute {name}, which transformers dropped in 5.0",
        until="these code bases call get_vocab()",
        without="crash",
        symptom=Symptom(reason="the fault is an attribute that a class lacks"),
    )


PATCHES = (_added("encoder", _encoder), _added("decoder", _decoder))
