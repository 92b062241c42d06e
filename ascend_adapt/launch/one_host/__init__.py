"""The processes of a job on one host: starting, supervising, logging and terminating them."""
