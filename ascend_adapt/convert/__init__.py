"""Conversion of checkpoints between dialects and parallel sizes, verified by their logits."""
