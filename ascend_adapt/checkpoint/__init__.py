"""Checkpoints of every dialect, read and written as one canonical state."""

from ascend_adapt.checkpoint.qkv import merge_qkv, split_qkv

__all__ = ["merge_qkv", "split_qkv"]
