"""Operators that only carry: what broadcast and all-gather move is never combined."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from topocomm.errors import OperatorError
from topocomm.execute.calls.structure import parts_of, shapes_of
from topocomm.operators.layout import ROWS, Arrays, Field
from topocomm.operators.operator import Operator


def carrier(x: Any, *, by_rows: bool) -> Operator:
    """The operator that moves values like x unchanged.

    Args:
        x: An array, or a dict, NamedTuple or dataclass of arrays.
        by_rows: Whether values are joined along axis 0 (all-gather), which all fields must have.
    """
    parts = parts_of(x)
    if not parts:
        raise OperatorError(f"expected arrays to carry, got an empty {type(x).__name__}")
    shapes_of(x, tuple(parts))  # each is an array that can travel
    axes = tuple((name, len(getattr(part, "shape", ()))) for name, part in parts.items())
    heads = {tuple(part.shape[:1]) for part in parts.values()}
    same_head = all(count > 0 for _, count in axes) and len(heads) == 1
    if by_rows and not same_head:
        raise OperatorError(
            "allgather joins values along axis 0, which every array must have, of one length on a rank; "
            "give a scalar as x.reshape(1)"
        )
    if len(axes) == 1:
        return _bare(axes[0][0])
    return _several(axes, same_head)


def _keep(left: Arrays, right: Arrays) -> Arrays:
    del right
    return left


@lru_cache
def _bare(name: str) -> Operator:
    return Operator("copy", (Field(name),), _keep, {name: 0})


@lru_cache
def _several(axes: tuple[tuple[str, int], ...], rows: bool) -> Operator:
    fields = []
    for name, count in axes:
        own = tuple(f"{name}.{axis}" for axis in range(1 if rows else 0, count))
        fields.append(Field(name, (ROWS, *own) if rows else own))
    return Operator("copy", tuple(fields), _keep, dict.fromkeys(dict(axes), 0))
