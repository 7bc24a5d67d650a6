"""Bounds derived again from their witnesses, by code that shares nothing with what finds them (`planning/bounds`)."""
