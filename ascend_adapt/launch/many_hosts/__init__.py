"""A job on several hosts: the launcher and the agent on each host."""
