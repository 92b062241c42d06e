"""The plugins that ship with ascend_adapt; no other code refers to DeepSpeed, Megatron, GPT-NeoX, GLM or transformers."""
