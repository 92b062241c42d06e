"""Patches: declares, judges, applies and reverts changes to Python objects, independent of any framework."""
