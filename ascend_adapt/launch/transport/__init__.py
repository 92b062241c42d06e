"""Transports: ways for the launcher to reach agents on other hosts."""
