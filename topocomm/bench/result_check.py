"""The expected result in float64, and the number of wrong elements.

An element is wrong if it differs from the expected one by more than

    2 P eps (|expected| + sum over the P ranks of |their number|),

eps being that of its dtype: more than any order of P roundings of sums, products, means or weighted means explains.
Integers, infinities and NaN must be met exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from topocomm.bench.problem import ROOT, Fields, Problem
from topocomm.errors import OperatorError
from topocomm.operators.dtypes import kind
from topocomm.operators.operator import Operator
from topocomm.planning.collectives import CARRYING, FROM_ROOT, IN_PAIRS, PARTS_GIVEN, PARTS_GOT, TO_ROOT

Exact = Callable[[Sequence[Mapping[str, NDArray[Any]]]], Mapping[str, Any]]
"""Function that reduces the values of some ranks, widened to float64, in float64."""


class Segment(NamedTuple):
    """Rows of a result, from `first`, that repeat the expected rows."""

    first: int
    rows: int
    expected: Fields
    tolerance: Fields


def expected(problem: Problem, rank: int, exact: Exact | None = None) -> list[Segment]:
    """Return the expected result of a rank by the formula `exact`; empty if the rank gets none.

    Without a formula, the operator's own combine folds values widened to float64.
    """
    name, ranks = problem.collective, problem.ranks
    if name in TO_ROOT and rank != ROOT:
        return []
    if name in PARTS_GIVEN:
        rows, shift = problem.value_rows, 0
        if name in IN_PAIRS:
            rows, shift = rows // ranks, rank * (rows // ranks)
        return [_segment(problem, peer * rows, rows, [peer], None, shift) for peer in range(ranks)]
    if name == "exscan" and rank == 0:
        return [_identity(problem)]
    members = {"scan": range(rank + 1), "exscan": range(rank)}.get(name, range(ranks))
    if name in FROM_ROOT:
        members, exact = range(ROOT, ROOT + 1), None
    shift = rank * problem.result_rows if name in PARTS_GOT else 0
    return [_segment(problem, 0, problem.result_rows, list(members), exact, shift)]


def count_wrong(problem: Problem, result: Mapping[str, NDArray[Any]], segments: Sequence[Segment]) -> int:
    """Count the wrong elements of a rank's result."""
    if not problem.layout.splittable:
        (only,) = segments
        return sum(_wrong(array, only.expected[name], only.tolerance[name]) for name, array in result.items())
    wrong = 0
    for first, rows, wanted, tolerance in segments:
        period = len(next(iter(wanted.values())))
        for start in range(0, rows, period):
            n = min(period, rows - start)
            part = slice(first + start, first + start + n)
            wrong += sum(_wrong(array[part], wanted[f][:n], tolerance[f][:n]) for f, array in result.items())
    return wrong


def _segment(
    problem: Problem, first: int, rows: int, members: Sequence[int], exact: Exact | None, shift: int
) -> Segment:
    periods = [problem.period(member) for member in members]
    wide = [{name: _widened(array) for name, array in period.items()} for period in periods]
    with np.errstate(all="ignore"):
        if len(members) == 1 or problem.collective in CARRYING:
            wanted: Fields = wide[0]
        elif exact is not None:
            wanted = {name: np.asarray(array) for name, array in exact(wide).items()}
        else:
            try:
                wanted = _left_fold(problem.operator, wide)
            except (TypeError, ValueError, OperatorError):  # the operator takes the stored dtypes only
                stored = _left_fold(problem.operator, periods)
                wanted = {name: _widened(array) for name, array in stored.items()}
        tolerance = {name: _tolerance(wanted[name], [v[name] for v in wide], periods[0][name].dtype) for name in wanted}
    if shift:
        wanted = {name: np.roll(array, -shift, axis=0) for name, array in wanted.items()}
        tolerance = {name: np.roll(array, -shift, axis=0) for name, array in tolerance.items()}
    return Segment(first, rows, wanted, tolerance)


def _identity(problem: Problem) -> Segment:
    scalars = problem.operator.identities(problem.layout)
    rows = (min(problem.result_rows, 1),) if problem.layout.splittable else ()
    wanted = {f.name: np.zeros((*rows, *f.row_shape), f.dtype) for f in problem.layout.fields}
    for name, array in wanted.items():
        array[...] = scalars[name]
    wide = {name: _widened(array) for name, array in wanted.items()}
    return Segment(0, problem.result_rows, wide, {name: np.zeros(a.shape) for name, a in wide.items()})


def _left_fold(operator: Operator, values: Sequence[Fields]) -> Fields:
    made: Mapping[str, Any] = values[0]
    for value in values[1:]:
        made = operator.combine(made, value)
    return {f.name: np.asarray(made[f.name]) for f in operator.fields}


def _widened(array: NDArray[Any]) -> NDArray[Any]:
    wide: dict[str, Any] = {"f": np.float64, "c": np.complex128}
    return array.astype(wide.get(kind(array.dtype), array.dtype))


def _tolerance(wanted: NDArray[Any], operands: Sequence[NDArray[Any]], dtype: np.dtype[Any]) -> NDArray[Any]:
    if kind(dtype) not in "fc" or len(operands) == 1:
        return np.zeros(wanted.shape)
    scale: NDArray[Any] = sum((_finite(operand) for operand in operands), _finite(wanted))
    real = dtype if kind(dtype) == "f" else np.zeros(0, dtype).real.dtype
    eps = float(ml_dtypes.finfo(real).eps)  # type: ignore[no-untyped-call]
    return np.asarray(2 * len(operands) * eps * scale)


def _finite(array: NDArray[Any]) -> NDArray[Any]:
    """Return absolute values; 0 for infinities and NaN, which are not rounded."""
    return np.where(np.isfinite(array), np.abs(array), 0.0)


def _wrong(got: NDArray[Any], wanted: NDArray[Any], tolerance: NDArray[Any]) -> int:
    if kind(got.dtype) not in "fc":
        return int(np.count_nonzero(got != wanted))
    with np.errstate(all="ignore"):
        wide = _widened(got)
        right = (wide == wanted) | (np.abs(wide - wanted) <= tolerance) | (np.isnan(wide) & np.isnan(wanted))
    return int(right.size - np.count_nonzero(right))
