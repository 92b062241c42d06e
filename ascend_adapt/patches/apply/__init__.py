"""Patches applied to a running interpreter, and reverted."""
