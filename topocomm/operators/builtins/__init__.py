"""The built-in operators, one kind a module."""
