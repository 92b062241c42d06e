"""`ascend-run`: starts the processes of a training job on one host or several."""
