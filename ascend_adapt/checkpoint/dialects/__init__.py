"""Checkpoint dialects, one module each: detection, reading and writing."""
