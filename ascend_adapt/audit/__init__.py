"""Audit of other patchers: what they change in the packages of others, read off their source or seen as they run."""
