"""Parallelism: device mesh, collectives, tensor parallelism and ZeRO."""
