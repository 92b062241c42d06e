"""The processes of a job on one host: start, supervision, output, termination."""
