"""`ascend-run --full-size --fit`: searches for settings with which a job fits the device's memory."""
