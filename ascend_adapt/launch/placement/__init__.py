"""Placement: assigns ranks to hosts and devices, with their environment, as plain data."""
