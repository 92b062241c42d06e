"""Judgement: decides whether a patch applies to the installed versions."""
