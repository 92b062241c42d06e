"""The kernels, one package each: its contract, and one module for each backend."""
