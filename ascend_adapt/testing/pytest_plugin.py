"""Loaded by every pytest of an environment that has ascend_adapt, so it stays small and imports nothing early."""
