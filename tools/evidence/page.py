"""The page of results: tables of errors, worst cases, and what was fitted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np

from topocomm.calibration.error_report import ErrorRow, RowError, error_table, summary, worst
from topocomm.calibration.fit_figures import Fit
from topocomm.planning.libraries.library_figures import TABLE

from .gather import Family

MIB = 1 << 20
APART = 1.2
"""Ratio of two measured times from which their order is scored."""


class Scored(NamedTuple):
    """A family with its fit, its rows by the fit, and its rows by nominal figures."""

    family: Family
    fit: Fit
    fitted: list[RowError]
    nominal: list[RowError]

    @property
    def rest(self) -> list[RowError]:
        """Rows that were not fitted, by the fit."""
        return [each for each in self.fitted if not each.fitted]


def percent(value: float) -> str:
    """Return a share as whole percent."""
    return f"{100 * value:.0f} %"


def goal_lines(scored: Sequence[Scored]) -> list[str]:
    """Return a table of the goals and what came out, over all families."""
    rest = [each for own in scored for each in own.rest]
    nominal = [each for own in scored for each in own.nominal]
    lines = ["| figure | goal | all families | " + " | ".join(own.family.name for own in scored) + " |"]
    lines.append("| --- | --- | --- |" + " --- |" * len(scored))

    def row(words: str, goal: str, figure: object, of: Iterable[list[RowError]]) -> None:
        cells = [figure(errors) if errors else "-" for errors in of]  # type: ignore[operator]
        lines.append(f"| {words} | {goal} | " + " | ".join(cells) + " |")

    def median(errors: list[RowError]) -> str:
        return percent(float(np.median([each.error for each in errors])))

    def p90(errors: list[RowError]) -> str:
        return percent(float(np.quantile([each.error for each in errors], 0.9)))

    def order(errors: list[RowError]) -> str:
        right, total = order_right(errors)
        return f"{percent(right / total)} of {total}" if total else "-"

    def at(errors: list[RowError], low: int, high: int) -> list[RowError]:
        return [each for each in errors if low <= each.row.payload_bytes < high]

    rests, nominals = [rest, *(own.rest for own in scored)], [nominal, *(own.nominal for own in scored)]
    top = 1 << 62
    row("not fitted, from 1 MiB: median error", "12 %", median, [at(own, MIB, top) for own in rests])
    row("not fitted, below 1 MiB: median error", "25 %", median, [at(own, 0, MIB) for own in rests])
    row("not fitted: 90th percentile", "40 %", p90, rests)
    row("not fitted: order right", "-", order, rests)
    row("nominal, from 16 MiB: median error", "30 %", median, [at(own, 16 * MIB, top) for own in nominals])
    row("nominal: order right", "90 %", order, nominals)
    return lines


def order_right(errors: Sequence[RowError]) -> tuple[int, int]:
    """Return (pairs in the right order, pairs scored): rows of one table, or of one size on as many ranks.

    Scored are pairs whose measured times differ by more than a fifth.
    """
    right = total = 0
    for a, b in combinations(errors, 2):
        same_table = a.model is b.model
        first, second = a.model.table, b.model.table
        same_call = a.row.payload_bytes == b.row.payload_bytes and (first.ranks, first.collective) == (
            second.ranks,
            second.collective,
        )
        times = sorted((a.row.time_us, b.row.time_us))
        if (same_table or same_call) and times[1] > APART * times[0]:
            total += 1
            right += (a.row.time_us < b.row.time_us) == (a.predicted_us < b.predicted_us)
    return right, total


def class_lines(errors: Sequence[RowError]) -> list[str]:
    """Return the errors by collective, library and size class as a table."""
    lines = ["| collective, library, memory | bytes | rows | median | 90 % | median of predicted / measured |"]
    lines.append("| --- | --- | --- | --- | --- | --- |")
    if not errors:
        return ["None."]
    lines += [_class_line(row) for row in error_table(errors)]
    return [*lines, _class_line(summary("all", "all", errors))]


def _class_line(row: ErrorRow) -> str:
    figures = f"{percent(row.median)} | {percent(row.p90)} | {row.bias:.2f}"
    return f"| {row.name} | {row.size_class} | {row.rows} | {figures} |"


def worst_lines(errors: Sequence[RowError], count: int = 8) -> list[str]:
    """Return the worst row of the worst tables."""
    lines = ["| table | bytes | measured us | predicted us | ratio |", "| --- | --- | --- | --- | --- |"]
    return lines + [
        f"| {each.model.table.name} | {each.row.payload_bytes:,} | {each.row.time_us:,.1f} | "
        f"{each.predicted_us:,.1f} | {each.ratio:.2f} |"
        for each in worst(errors, count)
    ]


def figure_lines(fit: Fit) -> list[str]:
    """Return what was fitted beside the defaults."""
    lines = ["| figure | default | fitted | meaning |", "| --- | --- | --- | --- |"]
    return lines + [
        f"| {name} | {TABLE[name].value:g} | {fit.figures[name]:.3g} | {TABLE[name].meaning} |" for name in fit.fitted
    ]
