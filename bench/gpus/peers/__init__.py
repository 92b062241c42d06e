"""Peers that need several GPUs; the others are those of one GPU (``bench.gpu.peers``)."""
