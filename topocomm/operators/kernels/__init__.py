"""Kernels: folds of built-in operators in C, of users' operators by numba, and on GPUs by Triton."""
