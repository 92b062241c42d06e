"""Code that runs inside the processes of a job."""
