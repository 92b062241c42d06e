"""Evaluation and generation: LAMBADA, COPA, perplexity and sampling, for checkpoints of every dialect."""
