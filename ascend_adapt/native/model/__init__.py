"""GPT decoder model."""
