"""One collective on values of one size, which every rank computes alike.

Values repeat after a prime number of rows: long ones are cheap to make and to check, and no shift by a power of two of
rows maps them onto themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topocomm.errors import PlanError
from topocomm.execute.calls.binding import carrier
from topocomm.operators.dtypes import kind
from topocomm.operators.layout import Layout
from topocomm.operators.operator import Operator
from topocomm.planning.collectives import CARRYING, IN_PAIRS, IN_PARTS, PARTS_GIVEN, PARTS_GOT, ROOTED

Fields = dict[str, NDArray[Any]]
PERIOD_ROWS = 4093
ROOT = 0


@dataclass(frozen=True)
class Problem:
    """A collective, its operator, the layout of the whole payload, and the number of ranks."""

    collective: str
    operator: Operator
    layout: Layout
    ranks: int

    @property
    def size_bytes(self) -> int:
        """Payload bytes as nccl-tests counts them: of one rank's value, or of the whole if it is in parts by rank."""
        return self.layout.rows // (self.ranks if self.collective in IN_PAIRS else 1) * self.layout.row_bytes

    @property
    def count(self) -> int:
        """Elements of one rank's value or, if the payload is in parts, of one part, as nccl-tests counts them."""
        items = self.layout.rows * sum(prod(f.row_shape) for f in self.layout.fields)
        cuts = sum(self.collective in names for names in (PARTS_GIVEN, PARTS_GOT))
        return items // int(self.ranks**cuts)

    @property
    def dtype_name(self) -> str:
        """Distinct dtypes of the fields."""
        return "+".join(dict.fromkeys(str(f.dtype) for f in self.layout.fields))

    @property
    def reduction(self) -> Operator | None:
        """The operator of the call; None for collectives that combine nothing."""
        return None if self.collective in CARRYING else self.operator

    @property
    def redop(self) -> str:
        """The operator's name; "none" for collectives that combine nothing."""
        return "none" if self.reduction is None else self.reduction.name

    @property
    def root(self) -> int:
        """The root; -1 if the collective has none."""
        return ROOT if self.collective in ROOTED else -1

    @property
    def value_rows(self) -> int:
        """Rows of one rank's value."""
        return self.layout.rows // self.ranks if self.collective in PARTS_GIVEN else self.layout.rows

    @property
    def result_rows(self) -> int:
        """Rows of one rank's result."""
        return self.layout.rows // self.ranks if self.collective in PARTS_GOT else self.layout.rows

    @property
    def fits_in_place(self) -> bool:
        """Whether the result has as many rows as the value."""
        return self.value_rows == self.result_rows

    def period(self, contributor: int) -> Fields:
        """Return the rows that the value of a rank (or virtual shard) repeats."""
        rows = min(PERIOD_ROWS, self.layout.rows)
        layout = replace(self.layout, leading=(rows,)) if self.layout.splittable else self.layout
        return draw(self.operator, layout, np.random.default_rng([2026, contributor]))

    def value(self, contributor: int) -> Fields:
        """Return the value of a rank (or virtual shard) as a new copy."""
        period = self.period(contributor)
        if not self.layout.splittable:
            return {name: array.copy() for name, array in period.items()}
        return {name: np.resize(array, (self.value_rows, *array.shape[1:])) for name, array in period.items()}

    def empty_result(self) -> Fields:
        """Return uninitialised arrays for one rank's result."""
        rows = (self.result_rows,) if self.layout.splittable else ()
        return {f.name: np.empty((*rows, *f.row_shape), f.dtype) for f in self.layout.fields}

    def given(self, fields: Fields) -> Any:
        """Return the fields as a user passes them: the bare array if there is one field."""
        return next(iter(fields.values())) if len(fields) == 1 else fields

    def fields_of(self, value: Any) -> dict[str, Any]:
        """Return the fields of a value as a user gets it; inverse of `given`."""
        return dict(value) if isinstance(value, Mapping) else {self.layout.fields[0].name: value}


def make_problem(collective: str, operator: Operator, rows: int, ranks: int) -> Problem:
    """Return the problem of `rows` rows; for a payload in parts they are rounded down to a multiple of the ranks.

    Raises:
        PlanError: The operator has no rows, and the collective cuts them.
        OperatorError: The operator has no default sizes.
    """
    if collective in IN_PARTS:
        if not operator.splittable:
            raise PlanError(f"--operator {operator.name}: its values have no rows, which {collective} cuts")
        rows = max(rows // ranks, 1) * ranks * (ranks if collective in IN_PAIRS else 1)
    layout = operator.default_layout(rows)
    if collective in CARRYING:
        one = Problem(collective, operator, layout, ranks)
        value = one.given(draw(operator, replace(layout, leading=(1,)), np.random.default_rng(0)))
        operator = carrier(value, by_rows=collective if collective in IN_PARTS else "")
    return Problem(collective, operator, layout, ranks)


def draw(operator: Operator, layout: Layout, rng: np.random.Generator) -> Fields:
    """Draw a value for an operator: by its `sample`, else normal floats, integers below 100, random bools."""
    if operator.sample is not None:
        return {name: np.ascontiguousarray(array) for name, array in operator.sample(rng, layout).items()}
    leading = layout.leading if layout.splittable else ()
    fields = {}
    for f in layout.fields:
        shape, number_kind = (*leading, *f.row_shape), kind(f.dtype)
        if number_kind == "f":
            numbers: NDArray[Any] = rng.standard_normal(shape)
        elif number_kind == "c":
            numbers = rng.standard_normal(shape) + 1j * rng.standard_normal(shape)
        else:
            numbers = rng.integers(0, 2 if number_kind == "b" else 100, shape)
        fields[f.name] = numbers.astype(f.dtype)
    return fields
