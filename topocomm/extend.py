"""For authors of operators and kernels: what runs on a GPU beside our own kernels, what CUDA needs for threads.

Functions in which ranks meet are marked by `skipped_by_dynamo`, so that torch.compile leaves them alone.

Importing it needs neither torch nor triton.
"""

from topocomm.execute.device.device_library import prepare_for_threads
from topocomm.execute.dynamo import skipped_by_dynamo
from topocomm.operators.kernels.launcher import compile_kernel, launcher, load_kernel

__all__ = ["compile_kernel", "launcher", "load_kernel", "prepare_for_threads", "skipped_by_dynamo"]
