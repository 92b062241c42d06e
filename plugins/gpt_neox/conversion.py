"""GPT-NeoX's tools that write a checkpoint for transformers: convert_neox_to_hf.py, and convert_to_hf.py of v2.0.

They know older models of transformers: the output layer was ``embed_out`` up to 5.13, and a layer's weights held
constants (4.44.0 and newer compute them).
"""

from __future__ import annotations

from typing import Any

from ascend_adapt import Symptom, add, wrap

from ..code_bases import GPT_NEOX
from .evaluation_harness import IMPORTING

MODELS = "transformers.models.gpt_neox.modeling_gpt_neox"
CONSTANTS = ("attention.bias", "attention.masked_bias", "attention.rotary_emb.inv_freq")
COMPUTED = (
    "transformers computes constants that v2.0's tool copies as weights: it asks a layer for them, and gives them"
)


def _embed_out(self: Any) -> Any:
    """Return the layer that gives the logits."""
    return self.lm_head


output_layer = add(
    f"{MODELS}:GPTNeoXForCausalLM.embed_out",
    value=property(_embed_out),
    name="output_layer",
    host=GPT_NEOX,
    requires="transformers>=5.14",
    why="the tools write to embed_out, which transformers calls lm_head since 5.14",
    until="the tools ask for the output layer by its method",
    without="crash",
    symptom=Symptom(
        "self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)",
        at=f"{MODELS}:GPTNeoXForCausalLM.__init__",
    ),
)


@wrap(
    f"{MODELS}:GPTNeoXLayer.state_dict",
    host=IMPORTING,
    requires="transformers>=4.44",
    why=COMPUTED,
    until="support for GPT-NeoX v2.0 ends",
    without="crash",
    symptom=Symptom(reason="the fault is in what v2.0's tool asks for"),
)
def constants_are_told(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the layer's weights, and None for each constant where the layer alone is asked."""
    weights = wrapped(*args, **kwargs)
    return weights if args or kwargs else {**dict.fromkeys(CONSTANTS), **weights}


@wrap(
    f"{MODELS}:GPTNeoXLayer.load_state_dict",
    host=IMPORTING,
    requires="transformers>=4.44",
    why=COMPUTED,
    until="support for GPT-NeoX v2.0 ends",
    without="crash",
    symptom=Symptom(reason="the fault is in what v2.0's tool gives"),
)
def constants_are_no_weights(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Load a layer's weights, all of them, without the constants."""
    given, *more = (kwargs.pop("state_dict"), *args) if "state_dict" in kwargs else args
    return wrapped({name: value for name, value in given.items() if name not in CONSTANTS}, *more, **kwargs)


PATCHES = (output_layer, constants_are_told, constants_are_no_weights)
