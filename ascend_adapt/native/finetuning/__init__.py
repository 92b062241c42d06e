"""Finetuning of GLM on SuperGLUE's tasks as clozes."""
