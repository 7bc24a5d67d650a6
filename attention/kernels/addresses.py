"""Memory at addresses, as compiled code takes it: the way from a tensor to an array costs more than a small call."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import carray, njit, types  # type: ignore[attr-defined]
from numba.extending import intrinsic


@intrinsic
def pointer(_typing: Any, address: Any, like: Any) -> Any:
    """The int64 address as a pointer to what the array `like` holds."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(like.dtype).as_pointer())

    return types.CPointer(like.dtype)(types.int64, like), codegen


@intrinsic
def _to_floats(_typing: Any, address: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], ir.FloatType().as_pointer())

    return types.CPointer(types.float32)(types.int64), codegen


@intrinsic
def from_bits(_typing: Any, bits: Any) -> Any:
    """The float32 with these 32 bits."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.FloatType())

    return types.float32(types.uint32), codegen


@njit(inline="always")
def floats(address, count):
    """`count` float32 at an address."""
    return carray(_to_floats(address), (count,))
