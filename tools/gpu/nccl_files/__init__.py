"""NCCL's library: a packed copy, its device code, its calls."""
