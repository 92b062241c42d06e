"""The kinds of jobs that a command line can request; each is checked completely before it becomes plain data."""
