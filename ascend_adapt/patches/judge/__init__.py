"""Judgement: whether a patch applies to the installed version."""
