"""Code of the launcher that runs inside the job's processes."""
