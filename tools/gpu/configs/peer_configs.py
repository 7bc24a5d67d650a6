"""Configurations of the peer kernel in the compile report."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from configs.resources import TARGETS, Config

CASES = (
    ("sum", "f4", 16384, 8),
    ("sum", "bfloat16", 65536, 8),
    ("sum", "f8", 1, 2),
    ("max", "?", 4096, 2),
    ("prod", "c8", 4096, 4),
    ("argmax", "f2", 4096, 8),
    ("logaddexp", "f8", 4096, 8),
    ("welford", "f4", 4096, 8),
    ("welford", "f8", 4096, 20),
    ("affine", "c16", 1024, 3),
    ("affine_matrix(4)", "f4", 256, 8),
    ("topk(1024)", "f4", 16, 8),
    ("attention.logsumexp", "f4", 32, 8),
    ("attention.logsumexp", "f4", 32, 9),
)
"""Operator, dtype, rows, ranks."""
OPTIONS = ("num_warps", "enable_fp_fusion", "maxnreg")


def peer_configs(arch: str) -> Iterator[Config]:
    """Return the configurations for one arch: operators in a flat allreduce, one in a reduce, and plain copies."""
    for name, dtype, rows, ranks in CASES:
        yield _config(arch, name, dtype, (rows, ranks), "allreduce")
    yield _config(arch, "sum", "f4", (16384, 8), "reduce")
    yield _config(arch, "sum", "f4", (16384, 8), "broadcast")


def _config(arch: str, name: str, dtype: str, sizes: tuple[int, int], collective: str) -> Config:
    import ml_dtypes

    from topocomm.operators.find import find_operator
    from topocomm.operators.kernels.gpu_peer import peer_kernel
    from topocomm.operators.kernels.peer import PeerCase, peer_options

    rows, ranks = sizes
    operator = find_operator(name)
    item = np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)
    shapes = {
        f.name: ((rows, *(operator.default_dims[axis] for axis in f.dims[1:])), item if f.dtype is None else f.dtype)
        for f in operator.fields
    }
    layout = operator.layout(shapes)
    operands = 1 if collective == "broadcast" else ranks
    case = PeerCase([rows], [0], operands, ranks, collective == "allreduce")
    constants: dict[str, Any] = peer_options(operator, layout, case, TARGETS[arch][0])
    options = {option: constants.pop(option) for option in OPTIONS if option in constants}
    signature: dict[str, Any] = {}
    for argument in peer_kernel.arg_names:
        if argument in constants:
            signature[argument] = "constexpr"
        elif argument in ("inputs", "outputs"):
            signature[argument] = ("i64",) * len(layout.fields)
        else:
            signature[argument] = "i64" if argument in ("program", "memories", "own", "control", "limit") else "i32"
    what = f"{name} {dtype}, {rows} rows, {collective} of {ranks} ranks"
    return Config("peer", what, peer_kernel, signature, constants, options)
