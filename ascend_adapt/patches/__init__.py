"""How to change a Python object and undo it; names and imports no framework."""
