"""`ascend-adapt report`: shows one run, or two runs compared, as one HTML page that needs no network."""
