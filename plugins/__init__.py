"""The plugins that ship with ascend_adapt: the only code about DeepSpeed, Megatron, GPT-NeoX, GLM or transformers."""
