"""Packing trees into link capacities by a linear program with generated columns."""
