"""Training on one GPU compared with peers in the same run: ``python -m bench.gpu`` (``make bench-gpu``)."""
