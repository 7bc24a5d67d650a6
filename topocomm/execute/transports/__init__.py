"""Transports: bytes between ranks, one library a file."""
