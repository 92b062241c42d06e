"""The kinds of job that a command line can ask for: checked completely, then pure data."""
