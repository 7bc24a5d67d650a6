"""Bounds on the time of a collective: what links, ports and parts of the machine take at least."""
