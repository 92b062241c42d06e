"""The plugins that ship with ascend_adapt: the only code that knows DeepSpeed, Megatron, NeoX, GLM or transformers."""
