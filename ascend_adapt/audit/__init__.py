"""Audit of other patchers: what they change in other packages, read from their source or recorded as they run."""
