"""Declarations of patches, as plain data."""
