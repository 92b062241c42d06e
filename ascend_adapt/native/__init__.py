"""Train GPT-like models from a TrainConfig, on any number of devices."""
