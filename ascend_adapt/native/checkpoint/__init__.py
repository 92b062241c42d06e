"""Checkpoints of a native run: save, load, resume."""
