"""Figures of libraries fitted to measured tables of one machine, on a part of the rows.

All tables of a machine share the figures: a figure has one meaning, whatever the table, the host count or the size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log

import numpy as np

from topocomm.calibration.least_squares import Floats, fit_places
from topocomm.calibration.measured_table import MeasuredRow, MeasuredTable
from topocomm.errors import PlanError
from topocomm.planning.libraries.job_shape import JobShape
from topocomm.planning.libraries.library_figures import DEFAULTS, is_share
from topocomm.simulation.libraries.library_times import Library, library_us

PRIOR = 0.1
"""Weight of a figure's default: one that is off by a factor of e counts as much as one row that is 10 % off."""
LEAST_EFFECT = 0.01
"""Share of the time by which a figure must change some row, when it changes by a tenth, to be fitted."""


@dataclass(frozen=True)
class TableModel:
    """A table of times, and what predicts it: its ranks, and the library that ran."""

    table: MeasuredTable
    shape: JobShape
    library: Library

    def predicted_us(self, row: MeasuredRow, figures: dict[str, float]) -> float:
        """Return the predicted time of a row."""
        table = self.table
        return library_us(
            self.library, self.shape, figures, table.collective, row.payload_bytes, pairs=table.pairs or 1
        )


@dataclass(frozen=True)
class Fit:
    """What was fitted.

    Attributes:
        figures: All figures: fitted ones and defaults.
        fitted: Names of those that were fitted.
        has_ll128: Whether NCCL's LL128 explains the rows better than its absence; None: no row tells.
        rows: Number of rows that were fitted.
    """

    figures: dict[str, float]
    fitted: tuple[str, ...]
    has_ll128: bool | None
    rows: int

    def __repr__(self) -> str:
        values = ", ".join(f"{name} {self.figures[name]:.4g}" for name in self.fitted)
        return f"<Fit to {self.rows} rows: {values or 'all figures are defaults'}>"


def is_fitted(model: TableModel, place: int, models: Sequence[TableModel]) -> bool:
    """Whether a row is in the part that is fitted: every second size, of every second host count.

    Host counts are those of the machine's tables of the same collective and library; with up to two of them all take
    part.
    """
    table = model.table
    ordered = sorted(
        {
            other.table.hosts or 1
            for other in models
            if other.table.collective == table.collective and other.library == model.library
        }
    )
    host = ordered.index(table.hosts or 1)
    return place % 2 == 0 and (len(ordered) < 3 or host % 2 == 0)


def fit_tables(models: Sequence[TableModel], *, every_row: bool = False, base: dict[str, float] = DEFAULTS) -> Fit:
    """Return the figures fitted to the tables of one machine; suspect tables are left out.

    Args:
        models: The tables with what predicts them.
        every_row: Fit all rows instead of a part.
        base: All figures before the fit; those that no row tells stay as they are.

    Raises:
        PlanError: No table can be fitted.
    """
    used = [model for model in models if model.table.suspect is None and _is_known(model)]
    if not used:
        raise PlanError("no table can be fitted: each is suspect, or of a collective whose rules are not known")
    rows = [
        (model, row)
        for model in used
        for place, row in enumerate(model.table.rows)
        if every_row or is_fitted(model, place, used)
    ]
    tells = any(m.library.kind == "nccl" and m.library.has_ll128 is None and m.shape.inner == "nvlink" for m, _ in rows)
    tries = [_fitted(rows, has, base) for has in ((True, False) if tells else (None,))]
    return min(tries, key=lambda each: each[0])[1]


def with_ll128(model: TableModel, has_ll128: bool | None) -> TableModel:
    """Return the model with what was found about LL128, where it is not known otherwise."""
    if has_ll128 is None or model.library.kind != "nccl" or model.library.has_ll128 is not None:
        return model
    return TableModel(model.table, model.shape, model.library._replace(has_ll128=has_ll128))


def _is_known(model: TableModel) -> bool:
    try:
        model.predicted_us(model.table.rows[0], DEFAULTS)
    except PlanError:
        return False
    return True


def _fitted(
    rows: list[tuple[TableModel, MeasuredRow]], has_ll128: bool | None, base: dict[str, float]
) -> tuple[float, Fit]:
    """(score, the less the better; fit)."""
    models = [(with_ll128(model, has_ll128), row) for model, row in rows]
    measured = np.log([row.time_us for _, row in models])

    def predicted(figures: dict[str, float]) -> Floats:
        return np.log([model.predicted_us(row, figures) for model, row in models])

    before = predicted(base)
    names = tuple(
        name
        for name, value in base.items()
        if np.abs(predicted({**base, name: value * 1.1}) - before).max() > LEAST_EFFECT
    )

    def figures_at(places: Floats) -> dict[str, float]:
        return {**base, **{name: _value(name, place) for name, place in zip(names, places, strict=True)}}

    start = np.array([_place(name, base[name]) for name in names])
    best = fit_places(lambda places: predicted(figures_at(places)) - measured, start, prior=PRIOR)
    figures = figures_at(best)
    error = float(np.abs(predicted(figures) - measured).mean())
    # Of two explanations the one with fewer figures, unless the other is better by more than these can fit by chance
    # (Schwarz, Annals of Statistics 6 (1978) 461-464, for the mean absolute error).
    score = log(max(error, 1e-6)) + len(names) * log(len(rows)) / (2 * len(rows))
    return score, Fit({k: float(f"{v:.5g}") for k, v in figures.items()}, names, has_ll128, len(rows))


def _place(name: str, value: float) -> float:
    """The logarithm of a figure, or of a share's odds: shares stay below 1."""
    return log(value / (1 - value)) if is_share(name) else log(value)


def _value(name: str, place: float) -> float:
    return 1 / (1 + exp(-place)) if is_share(name) else exp(place)
