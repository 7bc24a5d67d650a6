"""Attention of many queries on a GPU, by the Triton prefill kernel."""
