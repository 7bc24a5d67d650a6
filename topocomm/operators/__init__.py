"""Operators: what is reduced, its memory layout and its kernels."""
