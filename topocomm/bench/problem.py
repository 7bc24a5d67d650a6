"""One collective on values of one size: which values every rank gives, made alike on all ranks.

Values repeat after a prime number of rows, so that long ones are cheap to make and to check, while no power of two of
rows shifts them onto themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topocomm.errors import PlanError
from topocomm.execute.calls.copy_operator import carrier
from topocomm.operators.dtypes import kind
from topocomm.operators.layout import BoundField, Layout
from topocomm.operators.operator import Operator
from topocomm.planning.collectives import CARRYING, IN_PARTS

Fields = dict[str, NDArray[Any]]
PERIOD_ROWS = 4093
WITH_ROOT = ("reduce", "broadcast")
ROOT = 0


@dataclass(frozen=True)
class Problem:
    """A collective, its operator, the layout of the whole payload, and how many ranks take part."""

    collective: str
    operator: Operator
    layout: Layout
    ranks: int

    @property
    def size_bytes(self) -> int:
        """Bytes of payload, as nccl-tests counts them: of one rank's value, or of the whole where it is in parts."""
        return self.layout.rows * self.layout.row_bytes

    @property
    def count(self) -> int:
        """Numbers of one rank's value or, where the payload is in parts, of one part, as nccl-tests counts them."""
        items = self.layout.rows * sum(prod(f.row_shape) for f in self.layout.fields)
        return items // self.ranks if self.collective in IN_PARTS else items

    @property
    def dtype_name(self) -> str:
        """The dtypes of the fields, each once."""
        return "+".join(dict.fromkeys(str(f.dtype) for f in self.layout.fields))

    @property
    def redop(self) -> str:
        """The operator's name; "none" for what combines nothing."""
        return "none" if self.collective in CARRYING else self.operator.name

    @property
    def root(self) -> int:
        """The root; -1 where there is none."""
        return ROOT if self.collective in WITH_ROOT else -1

    @property
    def value_rows(self) -> int:
        """Rows that one rank gives."""
        return self.layout.rows // self.ranks if self.collective == "allgather" else self.layout.rows

    @property
    def result_rows(self) -> int:
        """Rows that one rank gets."""
        return self.layout.rows // self.ranks if self.collective == "reduce_scatter" else self.layout.rows

    def period(self, contributor: int) -> Fields:
        """The rows that the value of a rank (or virtual shard) repeats."""
        rows = min(PERIOD_ROWS, self.layout.rows)
        layout = replace(self.layout, leading=(rows,)) if self.layout.splittable else self.layout
        return draw(self.operator, layout, np.random.default_rng([2026, contributor]))

    def value(self, contributor: int) -> Fields:
        """The value of a rank (or virtual shard), its own to write to."""
        return self.repeated(self.period(contributor), self.value_rows)

    def repeated(self, period: Mapping[str, NDArray[Any]], rows: int) -> Fields:
        """These rows over and over, `rows` in all."""
        if not self.layout.splittable:
            return {name: array.copy() for name, array in period.items()}
        return {name: np.resize(array, (rows, *array.shape[1:])) for name, array in period.items()}

    def empty_result(self) -> Fields:
        """Arrays for one rank's result."""
        rows = (self.result_rows,) if self.layout.splittable else ()
        return {f.name: np.empty((*rows, *f.row_shape), f.dtype) for f in self.layout.fields}

    def given(self, fields: Fields) -> Any:
        """The fields as a user gives them: the bare array where there is one."""
        return next(iter(fields.values())) if len(fields) == 1 else fields


def make_problem(collective: str, operator: Operator, rows: int, ranks: int) -> Problem:
    """The problem of so many rows; where the payload is in parts, of the next multiple of the ranks below, at least 1.

    Raises:
        PlanError: The operator has no rows, and the collective cuts them.
        OperatorError: The operator has no default sizes.
    """
    if collective in IN_PARTS:
        if not operator.splittable:
            raise PlanError(f"--operator {operator.name}: its values have no rows, which {collective} cuts")
        rows = max(rows // ranks, 1) * ranks
    layout = operator.default_layout(rows)
    if collective in CARRYING:
        one = Problem(collective, operator, layout, ranks)
        value = one.given(draw(operator, replace(layout, leading=(1,)), np.random.default_rng(0)))
        operator = carrier(value, by_rows=collective == "allgather")
    return Problem(collective, operator, layout, ranks)


def draw(operator: Operator, layout: Layout, rng: np.random.Generator) -> Fields:
    """A value for an operator: as it samples itself, else normal floats, integers below 100, coins for bool."""
    if operator.sample is not None:
        return {name: np.ascontiguousarray(array) for name, array in operator.sample(rng, layout).items()}
    leading = layout.leading if layout.splittable else ()
    return {f.name: _numbers(f, leading, rng) for f in layout.fields}


def _numbers(bound: BoundField, leading: tuple[int, ...], rng: np.random.Generator) -> NDArray[Any]:
    shape = (*leading, *bound.row_shape)
    if kind(bound.dtype) == "f":
        return rng.standard_normal(shape).astype(bound.dtype)
    if kind(bound.dtype) == "c":
        return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(bound.dtype)
    return rng.integers(0, 2 if kind(bound.dtype) == "b" else 100, shape).astype(bound.dtype)
