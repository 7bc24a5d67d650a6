"""Text of LLNL's mpiBench: a line a size, with the number of ranks."""

from __future__ import annotations

import re
from pathlib import PurePath

from topocomm.calibration.measured_table import MeasuredRow, MeasuredTable, checked_row, collective_named, increasing
from topocomm.errors import TopologyError

_LINE = re.compile(
    r"^(?P<name>[A-Z][A-Za-z]+)\s+Bytes:\s*(?P<bytes>\d+)\s+Iters:\s*\d+\s+Avg:\s*(?P<avg>\S+)\s+Min:\s*\S+\s+Max:\s*\S+\s+"
    r"(?:Limit:\s*\S+\s+)?Comm:\s*(?P<comm>\S+)\s+Ranks:\s*(?P<ranks>\d+)\s*$"
)
_BEGINS = re.compile(r"^[A-Z][A-Za-z]+\s+Bytes:\s")
_PER_RANK = ("allgather", "alltoall", "gather", "scatter")
"""Collectives whose printed size is that of one rank's part; plans count the whole."""


def matches(text: str) -> bool:
    """Whether a line begins like mpiBench's."""
    return any(_BEGINS.match(line) for line in text.splitlines())


def read(text: str, source: str) -> tuple[MeasuredTable, ...]:
    """Return a table for each collective and communicator; vector variants (`Allgatherv`) are left out.

    Raises:
        TopologyError: A line is cut off, or a time is not positive; file and line are named.
    """
    tables: dict[tuple[str, str, int], list[MeasuredRow]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not _BEGINS.match(line):
            continue
        place = f"{source}: line {number}"
        match = _LINE.match(line)
        if match is None:
            raise TopologyError(f"{place}: expected Bytes, Iters, Avg, Min, Max, Comm and Ranks: the line is cut off")
        collective, ranks = collective_named(match["name"]), int(match["ranks"])
        if collective is None:
            continue
        try:
            average_us = float(match["avg"])
        except ValueError:
            raise TopologyError(f"{place}: Avg {match['avg']!r}: expected a time in us") from None
        scale = ranks if collective in _PER_RANK else 1
        row = checked_row(place, int(match["bytes"]) * scale, average_us)
        tables.setdefault((collective, match["comm"], ranks), []).append(row)
    if not tables:
        raise TopologyError(f"{source}: no line of a collective that is read (Allreduce, Bcast, Allgather, ...)")
    stem = PurePath(source).stem
    return tuple(
        MeasuredTable(
            name=f"{stem}:{collective}" + (f":{ranks}" if len({key[2] for key in tables}) > 1 else ""),
            source=source,
            collective=collective,
            library="MPI, mpiBench",
            ranks=ranks,
            hosts=None,
            rows=increasing(rows),
            memory="host",
        )
        for (collective, _, ranks), rows in tables.items()
    )
