"""Topologies as SVG pictures."""
