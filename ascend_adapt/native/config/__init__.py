"""The configuration of a native run, and what can be computed from it without torch."""
