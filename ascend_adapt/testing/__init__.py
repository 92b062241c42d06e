"""Conformance suite, with which plugin authors and users verify patches."""
