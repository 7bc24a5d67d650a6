"""Compiled pieces of the host engines."""
