"""Configuration of the native trainer, and what can be computed from it without torch."""
