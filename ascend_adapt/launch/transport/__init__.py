"""How the launcher reaches agents on other hosts."""
