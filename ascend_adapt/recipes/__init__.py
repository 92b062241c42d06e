"""Foreign configuration, as GPT-NeoX, Megatron and OneFlow-GPT have it, into one TrainConfig."""
