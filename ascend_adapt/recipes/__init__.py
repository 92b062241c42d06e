"""Recipes: translate a configuration of GPT-NeoX, Megatron, OneFlow-GPT or GLM into a TrainConfig."""
