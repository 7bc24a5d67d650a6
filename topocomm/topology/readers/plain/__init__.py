"""Topology JSON, and what readers share: pasted text, XML, JSON, YAML."""
