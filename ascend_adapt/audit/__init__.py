"""Audit of other patchers: finds what they change in other packages, from their source or while they run."""
