"""Alignment: records what every module and the optimizer compute in a step, and compares two such recordings."""
