"""Which ranks run on which host and device, and with which environment: pure data."""
