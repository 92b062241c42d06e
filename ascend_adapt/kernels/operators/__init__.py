"""The operations, a package each: its contract and its kernel, and one module a backend."""
