"""One module for each dialect of checkpoint files: what is there, how it is read, how it is written."""
