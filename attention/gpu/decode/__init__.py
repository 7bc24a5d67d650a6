"""Attention of a few queries on a GPU, by the Triton decode kernel."""
