"""`ascend-adapt report`: a run, or two compared, as one HTML page that needs no network."""
