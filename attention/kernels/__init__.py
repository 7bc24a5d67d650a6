"""Compiled kernels; each is optional, and has a plain counterpart that is used without it."""
