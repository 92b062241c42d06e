"""Patch declarations, as plain data."""
