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

WIDTH = 98
"""Columns of the lines of text."""
NAME_WIDTH = 23
FULL_WIDTH = 181
NONE = "-"
UNCHECKED = "N/A"


class Table:
    """Formats the lines of the table.

    Args:
        columns: Width of the terminal; None for a file or pipe, which gets the full table.
    """

    def __init__(self, columns: int | None) -> None:
        self.narrow = columns is not None and columns < FULL_WIDTH

    def head(self, facts: Facts, problems: Sequence[Problem], plans: Sequence[Plan], kernel: str) -> str:
        """Return the lines above the rows."""
        problem = problems[0]
        words = [
            f"topocomm {facts.versions.get('topocomm', '')}: {problem.collective}, {_counted(facts.ranks, 'rank')} on "
            f"{_counted(len(facts.hosts), 'host')} ({', '.join(facts.hosts[:4])}), {_cores(facts)}",
            ", ".join(filter(None, [facts.processor, facts.library, _versions(facts)])),
            f"transport: {_pairs(facts)}",
            f"operator {problem.operator.name}: {kernel}; "
            f"a row is {problem.layout.row_bytes} B of {problem.dtype_name}",
            "size: bytes of payload; time: mean of the slowest rank; algbw = size / time, busbw = "
            f"{bus_formula(problem.collective)}, GB/s = 10^9 B/s; #wrong: numbers that a float64 check refuses; "
            "p50, p99, predicted and predicted/p50: out of place",
        ]
        lines = [line for text in words for line in textwrap.wrap(text, WIDTH, subsequent_indent="  ")]
        lines += ["", "plan per size", *(_plan_line(plan) for plan in plans), ""]
        return "".join(f"# {line}".rstrip() + "\n" for line in lines) + self._columns(problem)

    def row(self, row: Row) -> str:
        """Return one row as a line."""
        return (_narrow_row(row) if self.narrow else _full_row(row)) + "\n"

    def foot(self, rows: Sequence[Row]) -> str:
        """Return the lines below the rows."""
        wrong = sum(row.wrong for row in rows)
        lines = [f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}"]
        lines.append(f"# Avg bus bandwidth    : {average_bus_gb_per_s(rows):.6g}")
        return "\n".join(lines) + "\n"

    def _columns(self, problem: Problem) -> str:
        if self.narrow:
            return (
                f"# {problem.dtype_name}, redop {problem.redop}, root {problem.root}\n"
                f"# {'':7} {'':{NAME_WIDTH}} {'out-of-place':^38} {'in-place':^15}\n"
                f"# {'size':>7} {'':{NAME_WIDTH}}"
                f"{'time':>8}{'busbw':>7}{'#wrong':>7}{'p50':>8}{'p99':>8}"
                f" {'time':>8}{'#wrong':>7}{'pred.':>7}{'/p50':>6}\n"
                f"# {'(B)':>7} {'':{NAME_WIDTH}}"
                f"{'(us)':>8}{'(GB/s)':>7}{'':7}{'(us)':>8}{'(us)':>8} {'(us)':>8}{'':7}{'(us)':>7}\n"
            )
        dtype, redop = _widths(problem)
        first = f"# {'':>10}  {'':>12}  {'':>{dtype}}  {'':>{redop}}  {'':>6}  {'out-of-place':^31}  {'in-place':^31}"
        half = f"  {'time':>7}  {'algbw':>6}  {'busbw':>6}  {'#wrong':>6}"
        units = f"  {'(us)':>7}  {'(GB/s)':>6}  {'(GB/s)':>6}  {'':>6}"
        return (
            first.rstrip() + "\n"
            f"# {'size':>10}  {'count':>12}  {'type':>{dtype}}  {'redop':>{redop}}  {'root':>6}{half}{half}"
            f"  {'p50':>8}  {'p99':>8}  {'predicted':>9}  {'pred/p50':>8}  implementation\n"
            f"# {'(B)':>10}  {'(elements)':>12}  {'':>{dtype}}  {'':>{redop}}  {'':>6}{units}{units}"
            f"  {'(us)':>8}  {'(us)':>8}  {'(us)':>9}\n"
        )


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


def _full_row(row: Row) -> str:
    p = row.problem
    dtype, redop = _widths(p)
    main = row.main.times
    return (
        f"{p.size_bytes:12d}  {p.count:12d}  {p.dtype_name:>{dtype}}  {p.redop:>{redop}}  {p.root:6d}"
        f"{_full_cell(row.out_of_place)}{_full_cell(row.in_place)}"
        f"  {figure(main.percentile_us(50), 8)}  {figure(main.percentile_us(99), 8)}"
        f"  {figure(row.predicted_us, 9)}  {figure(row.predicted_over_measured, 8)}  {row.name}"
    )


def _full_cell(cell: Cell | None) -> str:
    if cell is None:
        return f"  {NONE:>7}  {NONE:>6}  {NONE:>6}  {UNCHECKED:>6}"
    return (
        f"  {figure(cell.times.mean_us)}  {figure(cell.alg_gb_per_s, 6)}  {figure(cell.bus_gb_per_s, 6)}"
        f"  {_wrong(cell):>6}"
    )


def _narrow_row(row: Row) -> str:
    main, place = row.main, row.in_place
    in_place = f"{NONE:>8}{'':7}" if place is None else f"{figure(place.times.mean_us, 8)}{_wrong(place):>7}"
    return (
        f"{row.problem.size_bytes:9d} {row.name:{NAME_WIDTH}}"
        f"{figure(main.times.mean_us, 8)}{figure(main.bus_gb_per_s)}{_wrong(main):>7}"
        f" {figure(main.times.percentile_us(50))} {figure(main.times.percentile_us(99))}"
        f" {in_place} {figure(row.predicted_us, 6)}{figure(row.predicted_over_measured, 6)}"
    )


def _widths(problem: Problem) -> tuple[int, int]:
    """Return the widths of columns type and redop: nccl-tests' own, or wider if names are longer."""
    return max(8, len(problem.dtype_name)), max(6, len(problem.redop))


def _wrong(cell: Cell) -> str:
    return UNCHECKED if cell.wrong is None else str(cell.wrong)


def _plan_line(plan: Plan) -> str:
    f = plan.figures
    rounds = f"{f.rounds} round" + "s" * (f.rounds != 1)
    return f"{plan.payload_bytes:10d} B  {plan.algorithm}, {rounds}, digest {plan.digest[:12]}"


def _pairs(facts: Facts) -> str:
    if not facts.pairs:
        return "one rank, nothing to move"
    return ", ".join(f"{_counted(count, 'rank pair')} by {way}" for way, count in facts.pairs.items())


def _cores(facts: Facts) -> str:
    cores = _counted(facts.cores, "core")
    return f"{cores} for {facts.local_ranks} ranks: they take turns" if facts.local_ranks > facts.cores else cores


def _versions(facts: Facts) -> str:
    return ", ".join(f"{name} {text}" for name, text in facts.versions.items() if name != "topocomm")


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" + "s" * (count != 1)
