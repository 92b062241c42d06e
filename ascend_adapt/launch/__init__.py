"""`ascend-run`: from hosts to processes."""
