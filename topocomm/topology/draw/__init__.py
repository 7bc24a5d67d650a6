"""Topologies as pictures and text."""
