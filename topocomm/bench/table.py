"""The table as text: nccl-tests' columns first, at the same places, then ours.

A terminal that is too narrow gets a table of 100 columns without what all rows share.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from topocomm.bench.facts import Facts
from topocomm.bench.problem import Problem
from topocomm.bench.row import Cell, Row, bus_formula
from topocomm.planning.plan import Plan
from topocomm.topology.draw.names import plural

WIDTH = 98
"""Columns of the lines of text."""
NAME_WIDTH = 23
FULL_WIDTH = 181
NONE = "-"
UNCHECKED = "N/A"

Column = tuple[str, str, int, int]
"""(name, unit, blanks before, width of the values)."""
_HALF: tuple[Column, ...] = (
    ("time", "(us)", 2, 7),
    ("algbw", "(GB/s)", 2, 6),
    ("busbw", "(GB/s)", 2, 6),
    ("#wrong", "", 2, 6),
)
_NARROW: tuple[Column, ...] = (
    ("size", "(B)", 0, 9),
    ("", "", 1, NAME_WIDTH),
    ("time", "(us)", 0, 8),
    ("busbw", "(GB/s)", 0, 7),
    ("#wrong", "", 0, 7),
    ("p50", "(us)", 1, 7),
    ("p99", "(us)", 1, 7),
    ("time", "(us)", 1, 8),
    ("#wrong", "", 0, 7),
    ("pred.", "(us)", 1, 6),
    ("/p50", "", 0, 6),
)
_SLIM = (*_NARROW[:7], _NARROW[9])


class Table:
    """Formats the lines of the table.

    Args:
        columns: Width of the terminal; None for a file or pipe, which gets the full table.
    """

    def __init__(self, columns: int | None) -> None:
        self.narrow = columns is not None and columns < FULL_WIDTH
        self._slim = columns is not None and columns < WIDTH + 2  # without in-place results
        self._wrap = WIDTH if columns is None else min(WIDTH, max(columns, 40) - 2)

    def head(self, facts: Facts, problems: Sequence[Problem], plans: Sequence[Plan], kernel: str) -> str:
        """Return the lines above the rows."""
        problem = problems[0]
        cores = plural(facts.cores, "core")
        if facts.local_ranks > facts.cores:
            cores += f" for {facts.local_ranks} ranks: they take turns"
        versions = ", ".join(f"{name} {text}" for name, text in facts.versions.items() if name != "topocomm")
        pairs = ", ".join(f"{plural(count, 'rank pair')} by {way}" for way, count in facts.pairs.items())
        words = [
            f"topocomm {facts.versions.get('topocomm', '')}: {problem.collective}, {plural(facts.ranks, 'rank')} on "
            f"{plural(len(facts.hosts), 'host')} ({', '.join(facts.hosts[:4])}), {cores}",
            ", ".join(filter(None, [facts.processor, facts.library, versions])),
            f"transport: {pairs or 'one rank, nothing to move'}",
            f"operator {problem.operator.name}: {kernel}; "
            f"a row is {problem.layout.row_bytes} B of {problem.dtype_name}",
            "size: bytes of payload; time: mean of the slowest rank; algbw = size / time, busbw = "
            f"{bus_formula(problem.collective)}, GB/s = 10^9 B/s; #wrong: numbers that a float64 check refuses; "
            "p50, p99, predicted and predicted/p50: out of place",
        ]
        lines = [line for text in words for line in textwrap.wrap(text, self._wrap, subsequent_indent="  ")]
        lines += ["", "plan per size"]
        for plan in plans:
            rounds = plural(plan.figures.rounds, "round")
            lines.append(f"{plan.payload_bytes:10d} B  {plan.algorithm}, {rounds}, digest {plan.digest[:12]}")
        return "".join(f"# {line}".rstrip() + "\n" for line in [*lines, ""]) + self._names(problem)

    def row(self, row: Row) -> str:
        """Return one row as a line."""
        p, main, place = row.problem, row.main, row.in_place
        percentiles = [main.times.percentile_us(percent) for percent in (50, 99)]
        predicted = [row.predicted_us, row.predicted_over_measured]
        if self.narrow:
            in_place = (None, "") if place is None else (place.times.mean_us, _wrong(place))
            own = main.times.mean_us, main.bus_gb_per_s, _wrong(main)
            cells: list[str | float | None] = [str(p.size_bytes), row.name.ljust(NAME_WIDTH), *own, *percentiles]
            if self._slim:
                return _line(_SLIM, [*cells, predicted[0]])
            return _line(_NARROW, [*cells, *in_place, *predicted])
        words = [str(p.size_bytes), str(p.count), p.dtype_name, p.redop, str(p.root)]
        cells = []
        for cell in (row.out_of_place, place):
            bandwidths = (
                (None, None, None) if cell is None else (cell.times.mean_us, cell.alg_gb_per_s, cell.bus_gb_per_s)
            )
            cells += [*bandwidths, _wrong(cell)]
        return _line(_full(p), [*words, *cells, *percentiles, *predicted, row.name])

    def foot(self, rows: Sequence[Row]) -> str:
        """Return the lines below the rows."""
        wrong = sum(row.wrong for row in rows)
        lines = [f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}"]
        lines.append(f"# Avg bus bandwidth    : {average_bus_gb_per_s(rows):.6g}")
        return "\n".join(lines) + "\n"

    def _names(self, problem: Problem) -> str:
        columns = _SLIM if self._slim else _NARROW if self.narrow else _full(problem)
        names, units = ("#" + _line(columns, [column[i] for column in columns])[1:] for i in (0, 1))
        if self.narrow:
            first = f"# {problem.dtype_name}, redop {problem.redop}, root {problem.root}\n"
            in_place = "" if self._slim else f" {'in-place':^15}"
            first += f"# {'':7} {'':{NAME_WIDTH}} {'out-of-place':^38}{in_place}".rstrip() + "\n"
        else:
            left = sum(blanks + width for _, _, blanks, width in columns[:5])
            first = f"{'#':{left}}  {'out-of-place':^31}  {'in-place':^31}".rstrip() + "\n"
        return first + names + units


def _full(problem: Problem) -> tuple[Column, ...]:
    """Return the columns of the full table: type and redop have nccl-tests' widths, or more if names are longer."""
    return (
        ("size", "(B)", 0, 12),
        ("count", "(elements)", 2, 12),
        ("type", "", 2, max(8, len(problem.dtype_name))),
        ("redop", "", 2, max(6, len(problem.redop))),
        ("root", "", 2, 6),
        *_HALF,
        *_HALF,
        ("p50", "(us)", 2, 8),
        ("p99", "(us)", 2, 8),
        ("predicted", "(us)", 2, 9),
        ("pred/p50", "", 2, 8),
        ("implementation", "", 2, 0),
    )


def _line(columns: Sequence[Column], values: Sequence[str | float | None]) -> str:
    """Return one line, ending in a newline; figures in the width of their column."""
    cells = []
    for (_, _, blanks, width), value in zip(columns, values, strict=True):
        cells.append(" " * blanks + (value.rjust(width) if isinstance(value, str) else figure(value, width)))
    return "".join(cells).rstrip() + "\n"


def average_bus_gb_per_s(rows: Sequence[Row]) -> float:
    """Return the mean busbw of our rows, out of place and in place."""
    cells = [cell for row in rows if row.is_ours for cell in (row.out_of_place, row.in_place) if cell is not None]
    return sum(cell.bus_gb_per_s for cell in cells) / len(cells) if cells else 0.0


def figure(value: float | None, width: int = 7) -> str:
    """Format a number in `width` columns, with up to two digits after the point."""
    if value is None:
        return NONE.rjust(width)
    for digits in (2, 1, 0):
        text = f"{value:.{digits}f}"
        if len(text) < width or digits == 0:
            break
    return text.rjust(width) if len(text) <= width else f"{value:.0e}".rjust(width)


def _wrong(cell: Cell | None) -> str:
    return UNCHECKED if cell is None or cell.wrong is None else str(cell.wrong)
