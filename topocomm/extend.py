"""For authors of operators and kernels: what runs on a GPU beside our own kernels.

Importing it needs neither torch nor triton.
"""

from topocomm.operators.kernels.launcher import compile_kernel, launcher, load_kernel

__all__ = ["compile_kernel", "launcher", "load_kernel"]
