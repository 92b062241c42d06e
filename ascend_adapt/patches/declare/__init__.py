"""Patches as they are declared: data."""
