"""Algorithms over groups of ranks, such as hosts, and the rails between them."""
