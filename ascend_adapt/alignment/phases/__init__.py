"""How each phase of a training step is judged."""
