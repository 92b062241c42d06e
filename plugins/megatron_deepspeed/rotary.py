"""Rotary embeddings of deepspeedai's pipeline: computed once, for all its layers."""

from __future__ import annotations

from ascend_adapt import rewrite

from ..code_bases import MEGATRON_DEEPSPEED

# Its cosines and sines are on the device already.
cosines_and_sines = rewrite(
    "megatron.utils:update_rotary_pos_emb",
    old="RotaryEmbedding(rotary_dim, theta=args.rope_theta)(seq_length).to(get_accelerator().current_device_name())",
    new="RotaryEmbedding(rotary_dim, theta=args.rope_theta)(seq_length)",
    name="cosines_and_sines",
    host=MEGATRON_DEEPSPEED,
    why="it moves the embeddings to the device as one tensor, and they are a list of two: with "
    "--use-rotary-position-embeddings and the pipeline, as in its scripts for Llama, AttributeError on every device",
    until="the code base moves the list or leaves it where it is",
    without="crash",
)
