"""Samples from token files."""
