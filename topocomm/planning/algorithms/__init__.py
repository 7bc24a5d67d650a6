"""Families of schedules, one per file."""
