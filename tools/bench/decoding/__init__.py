"""Measurements of decode.py: methods, bytes sent, memory read and held."""
