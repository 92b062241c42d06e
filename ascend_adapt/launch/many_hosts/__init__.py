"""A job on several hosts: the launcher's side and the agent on each host."""
