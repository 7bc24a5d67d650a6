"""For authors of operators and kernels: what runs on a GPU beside our own kernels, and what CUDA needs for threads.

Importing it needs neither torch nor triton.
"""

from topocomm.execute.device.device_library import prepare_for_threads
from topocomm.execute.dynamo import skipped_by_dynamo
from topocomm.operators.kernels.launcher import compile_kernel, launcher, load_kernel

__all__ = ["compile_kernel", "launcher", "load_kernel", "prepare_for_threads", "skipped_by_dynamo"]
