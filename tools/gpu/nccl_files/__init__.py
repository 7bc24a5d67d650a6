"""The library of NCCL: one that is brought along, its device code, its calls."""
