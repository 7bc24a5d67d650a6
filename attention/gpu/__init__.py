"""Attention on GPUs by Triton kernels: NVIDIA and AMD, from one source."""
