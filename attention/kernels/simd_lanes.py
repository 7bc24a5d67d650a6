"""What vectors are to numba, and the pieces of LLVM code that functions on them are made of.

`LANES` float32 go in one vector, in the widest registers that the CPU has; LLVM spreads it over several where those are
narrower.
"""

from __future__ import annotations

from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import config, types
from numba.core import cgutils
from numba.core.datamodel import PrimitiveModel  # type: ignore[attr-defined]
from numba.extending import register_model

if config.DISABLE_JIT:  # type: ignore[attr-defined]
    raise ImportError("numba is switched off by NUMBA_DISABLE_JIT")

_FEATURES = llvm.get_host_cpu_features()
LANES = 16 if _FEATURES.get("avx512f") else 8
"""float32 in a vector."""
HALVES = bool(_FEATURES.get("f16c")) or not llvm.get_process_triple().startswith("x86_64")
"""Whether the CPU widens float16 itself."""
ROWS = 4
"""Query rows that share one pass over keys."""
KEYS = LANES // ROWS
"""Keys of which one vector holds the products with `ROWS` rows."""

FLOAT, INT = ir.FloatType(), ir.IntType(32)
VECTOR, INTS = ir.VectorType(FLOAT, LANES), ir.VectorType(INT, LANES)


class Lanes(types.Type):
    """The type of a vector."""

    def __init__(self) -> None:
        super().__init__(name=f"float32x{LANES}")


LANES_TYPE = Lanes()


@register_model(Lanes)
class _Model(PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, VECTOR)


def constant(value: float) -> ir.Constant:
    """The number in every lane."""
    return ir.Constant(VECTOR, [value] * LANES)


def call(builder: Any, name: str, *args: Any) -> Any:
    """An LLVM intrinsic on vectors of one type."""
    of = f"v{LANES}f32"
    signature = ir.FunctionType(VECTOR, [VECTOR] * len(args))
    return builder.call(cgutils.get_or_insert_function(builder.module, signature, f"llvm.{name}.{of}"), args)


def element(context: Any, builder: Any, kind: Any, array: Any, index: Any) -> Any:
    """Pointer to an element of a one-dimensional contiguous array."""
    return builder.gep(context.make_array(kind)(context, builder, array).data, [index], inbounds=True)


def widened(builder: Any, kind: Any, values: Any) -> Any:
    """Stored numbers as float32: bfloat16 comes as uint16, float16 as int16."""
    if kind.dtype == types.float32:
        return values
    if kind.dtype == types.uint16:
        bits = builder.shl(builder.zext(values, INTS), ir.Constant(INTS, [16] * LANES))
        return builder.bitcast(bits, VECTOR)
    return builder.fpext(builder.bitcast(values, ir.VectorType(ir.HalfType(), LANES)), VECTOR)


def first_lanes(builder: Any, kind: Any, stored: Any, at: Any, count: Any) -> Any:
    """The first `count` elements at a pointer, 0 in the other lanes; nothing beyond them is touched."""
    vector = ir.VectorType(stored, LANES)
    mask = builder.icmp_signed("<", ir.Constant(INTS, list(range(LANES))), repeated(builder, count, INTS))
    name = f"llvm.masked.load.v{LANES}{'f32' if kind.dtype == types.float32 else 'i16'}.p0"
    form = ir.FunctionType(vector, [vector.as_pointer(), INT, ir.VectorType(ir.IntType(1), LANES), vector])
    function = cgutils.get_or_insert_function(builder.module, form, name)
    at = builder.bitcast(at, vector.as_pointer())
    return widened(builder, kind, builder.call(function, [at, ir.Constant(INT, 1), mask, ir.Constant(vector, None)]))


def repeated(builder: Any, value: Any, vector: Any) -> Any:
    """A value in every lane of a vector of this type."""
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.Constant(INT, 0))
    return builder.shuffle_vector(one, ir.Constant(vector, ir.Undefined), ir.Constant(INTS, [0] * LANES))
