"""Applying and reverting patches in a running interpreter."""
