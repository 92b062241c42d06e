"""Placement: which ranks run on which host and device, with which environment; plain data."""
