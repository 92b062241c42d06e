"""Whether a patch is right for what is installed."""
