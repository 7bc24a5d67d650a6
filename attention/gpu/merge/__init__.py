"""Merging partials on a GPU, in Triton."""
