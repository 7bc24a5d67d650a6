"""Reductions by one elementwise SUM: what an operator declares, and weights relative to a common reference.

Libraries and switches reduce sums best, and often nothing else. A value whose reduction is a mean with weights e^lse
becomes a SUM where all ranks know one reference m for each row: they add e^(lse - m) and e^(lse - m) x, and divide.
That holds its precision only where weights neither overflow nor vanish. Whether they do is part of the SUM: each rank
adds small whole numbers, which floats add exactly in any order, so all ranks read the same counts and decide alike,
also where a library's sum of other numbers has other bits on another rank. docs/concepts/sums.md has the analysis.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from topocomm.errors import OperatorError
from topocomm.operators.layout import ROWS, Arrays, BoundField, Field, Layout
from topocomm.operators.tensors import is_tensor

NEGLIGIBLE = 1.0
"""Class of a rank's share that is there, and too small to be exact; 0 is that of an empty one."""
SIGNIFICANT = 4096.0
"""Class of a share that is large enough. The sum of the classes tells whether any is: it is at least this then."""
MOST_RANKS = 4095
"""Ranks whose classes add up exactly: at most 2^24 in float32, and negligible ones stay below SIGNIFICANT."""

DIGEST_ITEMS = 16
"""Items added for a digest of the reference: eight digits of four bits and their squares, in fours of a byte."""


class BoundShares(NamedTuple):
    """What is added and read, bound to arrays: two functions of the reference, for calls with the same arrays.

    The reference is contiguous and has one number for each row; its shape is [rows], or that which rows have in values.

    Attributes:
        send: Writes what this rank adds; whether that alone would be precise, as `SumLowering.exact` says.
        receive: Whether the sums are precise; where they are, it writes the result, if one was bound.
    """

    send: Callable[[Any], Any]
    receive: Callable[[Any], Any]


Bind = Callable[[Arrays, int, Arrays, Arrays | None], BoundShares | None]


class SumLowering(NamedTuple):
    """How a reduction over ranks becomes one elementwise SUM.

    The functions get arrays [rows, *dims] by field name, NumPy's or torch's, and write to those that they are given.

    Attributes:
        version: Tells what is added from that of others; ranks with different versions do not add up.
        fields: What is added, all of one float dtype, with the named axes of the operator's fields.
        encode: `encode(value, reference, ranks, sums)` writes what this rank adds to `sums`.
        exact: `exact(sums)`: whether the sums give the result as precisely as is documented: a bool, or a tensor of
            one. It may depend on counts in `sums` only, which are the same on all ranks whatever the order of addition.
        decode: `decode(sums, reference, result)` writes the result.
        takes_reference: Whether there is a reference: float64 [rows], the same on all ranks. Else None is given.
    """

    version: str
    fields: tuple[Field, ...]
    encode: Callable[[Arrays, Any, int, Arrays], None]
    exact: Callable[[Arrays], Any]
    decode: Callable[[Arrays, Any, Arrays], None]
    takes_reference: bool = True
    bind: Bind | None = None


class WeightRange(NamedTuple):
    """What the shares of one float dtype may be.

    Attributes:
        top: The sum of all ranks' shares stays below; half the largest float.
        least: What vanishes beside a share of this size is less than 2^-30 of it for each rank, 2^-62 in float64, even
            where the sum flushes subnormal numbers to 0.
    """

    top: float
    least: float


RANGES = {"float32": WeightRange(2.0**127, 2.0**-96), "float64": WeightRange(2.0**1023, 2.0**-960)}


class Weights(NamedTuple):
    """Weights of one rank's rows, [rows] each; arrays of NumPy or torch.

    Attributes:
        weight: e^(lse - reference) in float64; 0 where the row is empty or lost.
        lost: 1 where the share cannot be sent: it would overflow, or something in it is no number.
        present: Class of the weight: 0 where the row is empty, NEGLIGIBLE or SIGNIFICANT.
        product: Class of weight times the largest value, 0 where that is 0.
    """

    weight: Any
    lost: Any
    present: Any
    product: Any


def weigh(lse: Any, reference: Any, ranks: int, largest: Any = 1.0, *, dtype: str = "float32") -> Weights:
    """Return the weights of rows relative to a reference.

    Differences and exponentials are in float64: in float32 a difference of 80 is off by up to 4e-6, and its exponential
    by that fraction.

    Args:
        lse: Natural logarithms of the weights, [rows]; -inf: an empty row.
        reference: Float64 [rows].
        ranks: How many shares are added.
        largest: The largest magnitude that a row's weight is multiplied with, [rows]; of empty rows it may be anything.
        dtype: What is added: "float32" or "float64".
    """
    xp, limits = functions(lse), RANGES[dtype]
    with np.errstate(all="ignore"):
        lse = wide(lse)
        empty = lse == -xp.inf
        weight = xp.exp(lse - reference)
        product = weight * wide(largest)
        lost = ~((weight <= limits.top / ranks) & (product <= limits.top / ranks) | empty)
        unused = lost | empty
        weight, product = xp.where(unused, 0.0, weight), xp.where(unused, 0.0, product)
        present = xp.where(empty, 0.0, xp.where(weight >= limits.least, SIGNIFICANT, NEGLIGIBLE))
        vanishes = (product < limits.least) & ~unused & (wide(largest) != 0)
        return Weights(weight, lost, present, xp.where(vanishes, NEGLIGIBLE, SIGNIFICANT * (product > 0)))


def tail_items(*, scattered: bool) -> int:
    """Items beside the fields: the digest, and in each block of a reduce-scatter the ranks that are imprecise."""
    return DIGEST_ITEMS + scattered


def sum_layout(operator: str, lowering: SumLowering, layout: Layout) -> Layout:
    """Return the layout of what is added for values of a layout.

    Raises:
        OperatorError: The fields do not fit: no rows, other axes, or several dtypes.
    """
    dims = dict(layout.dims)
    named = [d for f in lowering.fields for d in f.dims[1:]]
    dtypes = {"open" if f.dtype is None else str(np.dtype(f.dtype)) for f in lowering.fields}
    rows = layout.splittable and all(f.dims[:1] == (ROWS,) for f in lowering.fields)
    if not rows or not {*named} <= {*dims} or dtypes not in ({"float32"}, {"float64"}):
        raise OperatorError(
            f"operator {operator!r}: lower_to_sum: expected fields (*rows, axes of the operator's), all float32 or all "
            f"float64, got {', '.join(f'{f.name} {list(f.dims)} {f.dtype}' for f in lowering.fields)}"
        )
    bound = [BoundField(f.name, np.dtype(f.dtype), tuple(dims[d] for d in f.dims[1:])) for f in lowering.fields]
    return Layout(tuple(bound), layout.leading, layout.dims)


def bound_shares(
    lowering: SumLowering, value: Arrays, ranks: int, sums: Arrays, result: Arrays | None, *, judged: bool = True
) -> BoundShares:
    """Return the steps of a lowering for these arrays; its own `bind` where that has them.

    Args:
        lowering: What is added.
        value: This rank's, [rows, *dims].
        ranks: How many shares are added.
        sums: Written by `send`, read by `receive`.
        result: Written by `receive`; None: nothing is.
        judged: Whether `send` must say whether the shares alone would be precise; else it may say anything.
    """
    bound = None if lowering.bind is None else lowering.bind(value, ranks, sums, result)
    if bound is not None:
        return bound

    def send(reference: Any) -> Any:
        lowering.encode(value, None if reference is None else reference.reshape(-1), ranks, sums)
        return not judged or lowering.exact(sums)

    def receive(reference: Any) -> bool:
        precise = bool(lowering.exact(sums))
        if precise and result is not None:
            lowering.decode(sums, None if reference is None else reference.reshape(-1), result)
        return precise

    return BoundShares(send, receive)


def all_exact(lost: Any, *classes: Any) -> Any:
    """Whether no row was lost, and in each class something significant was added where anything was; of sums."""
    bad = lost > 0
    for total in classes:
        bad = bad | ((total > 0) & (total < SIGNIFICANT))
    return ~bad.any()


def functions(x: Any) -> Any:
    """Return the module whose functions take x: torch or NumPy."""
    if is_tensor(x):
        import torch

        return torch
    return np


def wide(x: Any) -> Any:
    """Return x in float64."""
    return x.double() if is_tensor(x) else np.asarray(x, np.float64)
