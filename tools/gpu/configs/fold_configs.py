"""Configurations of the fold kernel in the compile report: all operators with a Triton combine."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

import topocomm
from attention import LOGSUMEXP
from configs.resources import TARGETS, Config
from topocomm.operators.dtypes import kind
from topocomm.operators.kernels import gpu
from topocomm.operators.kernels.gpu_kernel import fold_kernel
from topocomm.operators.layout import Layout
from topocomm.operators.operator import Operator

SIZES = ((1 << 20, 8), (4096, 2), (32, 20))
"""Rows and operands: long values in a launch that has all operands under way, middle ones, short ones in a loop."""
OPTIONS = ("num_warps", "enable_fp_fusion", "maxnreg")
FLOATS = ("float64", "float32", "float16", "bfloat16")
CASES: tuple[tuple[Operator, tuple[str, ...]], ...] = (
    (topocomm.SUM, (*FLOATS, "int8", "int64", "complex64")),
    (topocomm.PROD, ("float32", "bfloat16", "complex128")),
    (topocomm.MAX, (*FLOATS, "uint8", "bool")),
    (topocomm.MIN, ("float32", "int32")),
    (topocomm.ARGMAX, ("float32", "float16", "float64")),
    (topocomm.ARGMIN, ("float32", "int64")),
    (topocomm.BAND, ("uint32",)),
    (topocomm.BOR, ("int16",)),
    (topocomm.BXOR, ("uint64",)),
    (topocomm.LOGADDEXP, FLOATS),
    (topocomm.WELFORD, ("float64", "float32")),
    (topocomm.AFFINE, ("float32", "bfloat16", "complex128")),
    *(
        (topocomm.TOPK(k), dtypes)
        for k, dtypes in ((1, FLOATS), (8, (*FLOATS, "int64")), (50, ("float32",)), (1024, FLOATS))
    ),
    *((topocomm.AFFINE_MATRIX(d), dtypes) for d, dtypes in ((3, FLOATS), (16, FLOATS))),
    (LOGSUMEXP, ("float32",)),
)
"""Return operators and the dtypes of their fields of open dtype."""


def fold_configs(arch: str) -> Iterator[Config]:
    """Return the configurations for one arch; only launch options differ between arches."""
    for operator, dtypes in CASES:
        for turn, dtype in enumerate(dtypes):  # the first dtype in all sizes, each other one in one of them
            for rows, operands in SIZES if turn == 0 else SIZES[turn % len(SIZES) :][:1]:
                yield _config(arch, operator, dtype, rows, operands)


def _config(arch: str, operator: Operator, dtype: str, rows: int, operands: int) -> Config:
    layout = _layout(operator, dtype, rows)
    size = -(-layout.packed_bytes(rows) // 64) * 64
    works = [gpu.Work(rows, [size * slot for slot in range(operands)], size * operands)]
    combine = operator.triton_combine(layout)
    assert combine is not None, f"{operator.name} has no Triton combine"
    constants = gpu.launch_options(combine, layout, works, TARGETS[arch][0])
    options = {name: constants.pop(name) for name in OPTIONS if name in constants}
    given = {"buffer": "*u8", "table": "*i64", "stride": "i32", "tiles": "i32"}
    signature: dict[str, str | tuple[str, ...]] = {name: given.get(name, "constexpr") for name in fold_kernel.arg_names}
    signature["targets"] = ("*u8",) * len(layout.fields)
    what = f"{operator.name} {dtype}, {rows} rows, {operands} operands"
    return Config("fold", what, fold_kernel, signature, constants, options)


def _layout(operator: Operator, dtype: str, rows: int) -> Layout:
    import ml_dtypes

    found = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    assert kind(found), f"{dtype} is no dtype of topocomm's"
    shapes = {
        field.name: ((rows, *(operator.default_dims[dim] for dim in field.dims[1:])), field.dtype or found)
        for field in operator.fields
    }
    layout: Layout = operator.layout(shapes)
    return layout
