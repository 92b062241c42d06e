"""Checkpoint conversion between dialects and parallel sizes, verified by comparing logits."""
