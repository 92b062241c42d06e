"""Recipes: the configuration of GPT-NeoX, Megatron or OneFlow-GPT, translated into one TrainConfig."""
