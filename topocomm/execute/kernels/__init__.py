"""Compiled pieces of execution."""
