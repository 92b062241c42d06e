"""Hugging Face checkpoints: config.json and safetensors (or pytorch_model.bin), one module for each architecture."""
