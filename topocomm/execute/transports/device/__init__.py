"""Transports of device memory, one per file."""
