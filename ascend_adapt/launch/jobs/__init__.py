"""The kinds of job that a command line can request: checked completely, then plain data."""
