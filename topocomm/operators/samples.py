"""Values to try an operator on: ordinary ones with ties, signed zeros, infinities; and the extremes of the dtype."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from topocomm.errors import OperatorError
from topocomm.operators.dtypes import kind, limits
from topocomm.operators.layout import ROWS, Layout
from topocomm.operators.operator import Operator
from topocomm.operators.operator_arguments import fields_apart

AXIS = 3
"""Size of an axis for which the operator has no default, small so that counterexamples are readable."""
Values = dict[str, NDArray[Any]]


def sample_layout(operator: Operator, dims: Mapping[str, int] | None, dtype: DTypeLike | None, rows: int) -> Layout:
    """Return the layout of `rows` rows, or of the whole value if it has no rows.

    Raises:
        OperatorError: An axis is not the operator's, or it refuses the layout.
    """
    named = {d for f in operator.fields for d in f.dims if d != ROWS}
    unknown = sorted(set(dims or {}) - named)
    if unknown:
        raise OperatorError(f"check_laws: operator {operator.name!r} has no axis {unknown[0]!r}, only {sorted(named)}")
    sizes = dict.fromkeys(named, AXIS) | dict(operator.default_dims) | dict(dims or {})
    lead = (rows,) if operator.splittable else ()

    def layout(open_dtype: DTypeLike) -> Layout:
        return operator.layout(
            {
                f.name: ((*lead, *(sizes[d] for d in f.dims if d != ROWS)), open_dtype if f.dtype is None else f.dtype)
                for f in operator.fields
            }
        )

    if dtype is None:
        try:
            return layout(np.float32)
        except OperatorError:
            dtype = np.int64
    return layout(dtype)


def identity_value(operator: Operator, layout: Layout) -> Values:
    """Return the identity as arrays of a layout."""
    scalars = operator.identities(layout)
    return {f.name: np.full((*layout.leading, *f.row_shape), scalars[f.name], f.dtype) for f in layout.fields}


def samples(operator: Operator, layout: Layout, rng: np.random.Generator, count: int) -> Iterator[list[Values]]:
    """Draw triples of values; for operators without rows, `count` triples of one value each."""
    for turn in range(1 if operator.splittable else count):
        for extreme in (False, True):
            yield [_value(operator, layout, rng, extreme, turn) for _ in range(3)]


def _value(operator: Operator, layout: Layout, rng: np.random.Generator, extreme: bool, turn: int) -> Values:
    if operator.sample is not None:
        value = _own_sample(operator, layout, operator.sample(rng, layout))
    else:
        value = {f.name: _array((*layout.leading, *f.row_shape), f.dtype, rng, extreme) for f in layout.fields}
    neutral = identity_value(operator, layout)
    if not operator.splittable:
        return neutral if rng.random() < 0.1 and turn else value
    chosen = rng.random(layout.leading) < 0.1
    for name, array in value.items():
        array[chosen] = neutral[name][chosen]
    return value


def _own_sample(operator: Operator, layout: Layout, sample: Any) -> Values:
    """Return what an operator's `sample` made, in the dtypes of the layout."""
    shapes = {f.name: (*layout.leading, *f.row_shape) for f in layout.fields}
    what = f"check_laws: `sample` of operator {operator.name!r} must return a dict of arrays"
    if not isinstance(sample, Mapping) or sorted(sample, key=str) != sorted(shapes):
        got = fields_apart(shapes, sample) if isinstance(sample, Mapping) else f"got {type(sample).__name__}"
        raise OperatorError(f"{what} with the fields {list(shapes)}; {got}")
    value = {}
    for f in layout.fields:
        try:
            value[f.name] = np.array(sample[f.name], f.dtype)
        except (TypeError, ValueError) as error:
            raise OperatorError(f"{what}: field {f.name!r} is no {f.dtype} array ({error})") from None
        if value[f.name].shape != shapes[f.name]:
            raise OperatorError(
                f"{what} [*layout.leading, named axes ...]: field {f.name!r} has shape {list(value[f.name].shape)}, "
                f"not {list(shapes[f.name])}{_sizes_to_give(operator, layout, f.name, value[f.name].shape)}"
            )
    return value


def _sizes_to_give(operator: Operator, layout: Layout, field: str, shape: tuple[int, ...]) -> str:
    """Return the sizes of axes that a sample has and the operator does not say, to end an error with."""
    axes = [axis for f in operator.fields if f.name == field for axis in f.dims if axis != ROWS]
    if len(shape) != len(layout.leading) + len(axes) or shape[: len(layout.leading)] != layout.leading:
        return ""
    bound, sizes = dict(layout.dims), dict(zip(axes, shape[len(layout.leading) :], strict=True))
    other = {axis: size for axis, size in sizes.items() if size != bound[axis]}
    return f"; give the operator default_dims={other}" if other else ""


def _array(shape: tuple[int, ...], dtype: np.dtype[Any], rng: np.random.Generator, extreme: bool) -> NDArray[Any]:
    what = kind(dtype)
    if what == "b":
        return rng.integers(0, 2, shape).astype(dtype)
    if what in ("i", "u"):
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        wide = rng.integers(low, high, shape, dtype, endpoint=True)
        small = rng.integers(max(low, -3), 4, shape).astype(dtype)
        return np.asarray(np.where(rng.random(shape) < (0.8 if extreme else 0.2), wide, small), dtype)
    if what == "c":
        half = np.dtype(f"f{dtype.itemsize // 2}")
        return np.asarray(_array(shape, half, rng, extreme) + 1j * rng.normal(size=shape), dtype)
    if what != "f":
        raise OperatorError(f"check_laws: cannot sample {dtype}; give the operator a `sample` of its own")
    special = np.array([0.0, -0.0, 1.0, -1.0, 2.0, -2.0, np.inf, -np.inf], dtype)
    if extreme:
        of_dtype = limits(dtype)
        tiny = of_dtype.smallest_subnormal
        ends = [of_dtype.max, -of_dtype.max, of_dtype.smallest_normal, tiny, -tiny]
        special = np.concatenate([special, np.array([np.nan, *ends], dtype)])
    ordinary = rng.normal(size=shape).astype(dtype)
    picked = special[rng.integers(0, len(special), shape)]
    return np.asarray(np.where(rng.random(shape) < (0.6 if extreme else 0.25), picked, ordinary), dtype)
