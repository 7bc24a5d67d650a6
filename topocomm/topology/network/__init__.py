"""Switches between hosts."""
