"""Conformance suite: plugin authors and users run it to verify patches."""
