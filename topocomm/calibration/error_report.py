"""How far predictions are from measured times: by collective, library and size, and the worst rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from topocomm.calibration.fit_figures import Fit, TableModel, is_fitted, with_ll128
from topocomm.calibration.measured_table import MeasuredRow

MIB = 1 << 20
SIZE_CLASSES: tuple[tuple[str, int, int], ...] = (
    ("< 64 KiB", 0, 64 << 10),
    ("64 KiB to 1 MiB", 64 << 10, MIB),
    ("1 to 16 MiB", MIB, 16 * MIB),
    (">= 16 MiB", 16 * MIB, 1 << 62),
)
"""Name, least bytes, bytes that are too many."""


class RowError(NamedTuple):
    """A measured row beside its prediction."""

    model: TableModel
    row: MeasuredRow
    predicted_us: float
    fitted: bool

    @property
    def ratio(self) -> float:
        """Predicted over measured."""
        return self.predicted_us / self.row.time_us

    @property
    def error(self) -> float:
        """Relative error, absolute."""
        return abs(self.ratio - 1)

    @property
    def kind(self) -> tuple[str, str, str]:
        """Collective, library, memory."""
        return self.model.table.collective, self.model.library.kind, self.model.table.memory


class ErrorRow(NamedTuple):
    """Errors of one class of rows: median and 90th percentile of the relative error, and the median ratio."""

    name: str
    size_class: str
    rows: int
    median: float
    p90: float
    bias: float


def row_errors(models: Sequence[TableModel], fit: Fit) -> list[RowError]:
    """Return every row of the tables that are not suspect beside its prediction by a fit."""
    used = [model for model in models if model.table.suspect is None]
    found = []
    for model in used:
        own = with_ll128(model, fit.has_ll128)
        for place, row in enumerate(model.table.rows):
            predicted_us = own.predicted_us(row, fit.figures)
            found.append(RowError(model, row, predicted_us, is_fitted(model, place, used)))
    return found


def error_table(errors: Iterable[RowError]) -> list[ErrorRow]:
    """Return the errors by collective, library, memory and size class."""
    groups: dict[tuple[str, str], list[RowError]] = {}
    for each in errors:
        name = " ".join(each.kind)
        for size_class, least, many in SIZE_CLASSES:
            if least <= each.row.payload_bytes < many:
                groups.setdefault((name, size_class), []).append(each)
    order = [size_class for size_class, *_ in SIZE_CLASSES]
    keys = sorted(groups, key=lambda key: (key[0], order.index(key[1])))
    return [summary(name, size_class, groups[name, size_class]) for name, size_class in keys]


def summary(name: str, size_class: str, errors: Sequence[RowError]) -> ErrorRow:
    """Return the errors of rows as one line."""
    relative = np.array([each.error for each in errors])
    ratios = np.array([each.ratio for each in errors])
    return ErrorRow(
        name,
        size_class,
        len(errors),
        float(np.median(relative)),
        float(np.quantile(relative, 0.9)),
        float(np.median(ratios)),
    )


def worst(errors: Iterable[RowError], count: int) -> list[RowError]:
    """Return the rows that are furthest off, as ratios, one of each table."""
    found: dict[str, RowError] = {}
    for each in sorted(errors, key=lambda each: -abs(float(np.log(each.ratio)))):
        found.setdefault(each.model.table.name, each)
    return list(found.values())[:count]


def text(rows: Sequence[ErrorRow]) -> str:
    """Return a table of errors as aligned text."""
    width = max([len(row.name) for row in rows] + [10])
    head = f"{'rows':{width}}  {'bytes':16} {'number':>6} {'median':>7} {'90 %':>6} {'ratio':>6}"
    lines = [
        f"{row.name:{width}}  {row.size_class:16} {row.rows:6} {100 * row.median:5.1f} % {100 * row.p90:4.0f} % "
        f"{row.bias:6.2f}"
        for row in rows
    ]
    return "\n".join([head, *lines])
