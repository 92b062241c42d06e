"""Peers: each file trains the same configuration with other software and states its version and settings."""
