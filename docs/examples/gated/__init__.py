"""Gated linear attention over a sharded sequence."""
