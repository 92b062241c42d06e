"""Generation with a decoder: continuation of prompts, and GLM's blank filling."""
