"""Compiled folds: numba at work, imported only where it is there."""
