"""Topologies as files that other programs read."""
