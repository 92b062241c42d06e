"""Fixes for GPT-NeoX's tools that write a transformers checkpoint: convert_neox_to_hf.py, and convert_to_hf.py of v2.0.

The tools expect models of older transformers: up to 5.13, the output layer was ``embed_out``, and layers stored
constants that newer releases compute (4.44.0 still stores them).
"""

from __future__ import annotations

from typing import Any

from ascend_adapt import Call, Symptom, add, wrap

from ..code_bases import GPT_NEOX
from .evaluation_harness import IMPORTING

MODEL = "transformers.models.gpt_neox.modeling_gpt_neox:GPTNeoXForCausalLM"
CONSTANTS = ("attention.bias", "attention.masked_bias", "attention.rotary_emb.inv_freq")


def _embed_out(self: Any) -> Any:
    """Return the model's output layer, lm_head."""
    return self.lm_head


output_layer = add(
    f"{MODEL}.embed_out",
    value=property(_embed_out),
    name="output_layer",
    host=GPT_NEOX,
    requires="transformers>=5.14",
    why="the tools write to embed_out, which transformers renamed to lm_head in 5.14",
    until="the tools call get_output_embeddings()",
    without="crash",
    symptom=Symptom(
        "self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)", at=f"{MODEL}.__init__"
    ),
)


@wrap(
    f"{MODEL}.__init__",
    host=IMPORTING,
    requires="transformers>=4.57",
    why="v2.0's tool reads constants that newer transformers releases compute, and loads them as weights: KeyError",
    until="support for GPT-NeoX v2.0 ends",
    without="crash",
    symptom=Symptom(reason="the fault is in the constants that v2.0's tool expects"),
)
def layer_constants(call: Call) -> None:
    """Make the state dict of a single layer list the constants as None, and ignore them when it is loaded."""
    call.proceed()
    for layer in call.instance.gpt_neox.layers:
        _name_constants(layer)


def _name_constants(layer: Any) -> None:
    weights, load = layer.state_dict, layer.load_state_dict

    def state_dict(*args: Any, **kwargs: Any) -> Any:
        """Return the weights and constants; with arguments, as inside the state dict of a model, only the weights."""
        held = weights(*args, **kwargs)
        return held if args or kwargs else {**dict.fromkeys(CONSTANTS), **held}

    def load_state_dict(state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        """Load all weights, and each constant that the layer has."""
        left_out = set(CONSTANTS).difference(weights())
        return load({name: one for name, one in state_dict.items() if name not in left_out}, *args, **kwargs)

    layer.state_dict, layer.load_state_dict = state_dict, load_state_dict
