"""For authors of operators and kernels: what runs on a GPU beside our own kernels, what CUDA needs for threads.

`SumLowering` says how an operator is reduced by a library's SUM; `weigh`, `all_exact`, `functions` and `wide` are for
those whose values carry weights e^lse.

`difference` says in what ranks differ that were to say the same.

Functions in which ranks meet are marked by `skipped_by_dynamo`, so that torch.compile leaves them alone.

Importing it needs neither torch nor triton.
"""

from topocomm.execute.calls.agreement import difference
from topocomm.execute.device.device_library import prepare_for_threads
from topocomm.execute.dynamo import skipped_by_dynamo
from topocomm.operators.kernels.launcher import compile_kernel, launcher, load_kernel
from topocomm.operators.sum_lowering import BoundShares, SumLowering, all_exact, bound_shares, functions, weigh, wide

__all__ = [
    "BoundShares",
    "SumLowering",
    "all_exact",
    "bound_shares",
    "compile_kernel",
    "difference",
    "functions",
    "launcher",
    "load_kernel",
    "prepare_for_threads",
    "skipped_by_dynamo",
    "weigh",
    "wide",
]
