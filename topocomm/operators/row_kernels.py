"""Kernels of users' operators: a function of one row, compiled."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from topocomm.errors import OperatorError
from topocomm.operators.fingerprint import fingerprint
from topocomm.operators.layout import BoundField, Layout
from topocomm.operators.operator import Kernel


def row_kernel(function: Callable[..., None]) -> Callable[[Layout], Kernel | None]:
    """A compiled kernel for `Operator(kernel=...)`, from a function that combines one row.

    `function(left_a, left_b, ..., right_a, right_b, ..., out_a, out_b, ...)` takes for every field of the operator
    the row of the left operand, then of the right one, then of the result, as arrays with the field's named axes; a
    field without any comes as an array of one item. It writes the result; the arrays of the result share no memory
    with the others. numba compiles it when a layout is first used, without fast-math, says so on stderr, and keeps the
    machine code on disk. It must not raise: nobody would hear of it. Functions and constants that it names count as
    part of it.

    Where numba is missing or switched off, and for floats of 16 bits, `combine` runs; the agreement between ranks
    tells the two apart.

    Raises (the kernel, at its first use):
        OperatorError: numba does not take the function, with the reason.
    """
    name = getattr(function, "__qualname__", type(function).__name__)

    @cache
    def of_fields(fields: tuple[BoundField, ...]) -> Kernel | None:
        try:
            from topocomm.operators.kernels.row_folds import NumbaError, compile_row_function, covers
        except ImportError:  # numba is optional, and can be switched off
            return None
        if not covers(fields):
            return None
        try:
            compiled = compile_row_function(function, fields)
        except (NumbaError, TypeError) as error:  # TypeError: another number of arguments
            lines = [line.strip() for line in str(error).splitlines()]
            frames = ("Failed in nopython", "During:", "<source")
            reasons = [line for line in lines if line and not line.startswith(frames)]
            raise OperatorError(f"row_kernel: numba does not take {name}: {'; '.join(reasons[:4])}") from None
        return Kernel(f"numba.{name}/{fingerprint(function, with_globals=True)}", compiled=compiled)

    def kernel(layout: Layout) -> Kernel | None:
        return of_fields(layout.fields)

    return kernel
