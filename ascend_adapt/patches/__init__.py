"""Patches: declare, judge, apply and revert changes to Python objects; independent of any framework."""
