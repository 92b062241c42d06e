"""Peers that need several GPUs; peers for a single GPU are in ``bench.gpu.peers``."""
