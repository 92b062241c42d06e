"""Training on several GPUs of one host compared with peers in the same run: ``python -m bench.gpus``."""
