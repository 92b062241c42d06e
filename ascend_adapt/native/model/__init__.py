"""The transformer that is trained."""
