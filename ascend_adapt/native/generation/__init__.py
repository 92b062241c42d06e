"""Generation with a decoder: tokens that continue prompts, and the blanks that GLM fills."""
