"""Text of the OSU micro-benchmarks: latencies, bandwidths and collectives, with one column or all (`-f`)."""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import NamedTuple

from topocomm.calibration.measured_table import (
    MeasuredRow,
    MeasuredTable,
    Memory,
    checked_row,
    collective_named,
    increasing,
)
from topocomm.errors import TopologyError

_TITLE = re.compile(
    r"^#\s*OSU MPI(?P<device>-(?:CUDA|ROCM|OPENACC|SYCL)\S*)?\s+(?P<test>.+?)\s+Test(?:\s+v(?P<version>\S+))?"
)
_COLUMNS = re.compile(r"^#\s*(?:Size\b|Avg Latency)")
_PAIRS = re.compile(r"\[\s*pairs:\s*(\d+)\s*\]")
_BANDWIDTHS = ("Bandwidth", "Multiple Bandwidth / Message Rate")
_PER_RANK = ("allgather", "alltoall", "gather", "scatter")
"""Collectives whose printed size is that of one rank's part; plans count the whole."""


class _Test(NamedTuple):
    collective: str
    is_bandwidth: bool


def matches(text: str) -> bool:
    """Whether a line is the title of an OSU benchmark."""
    return any(_TITLE.match(line) for line in text.splitlines())


def read(text: str, source: str, *, ranks: int | None = None) -> tuple[MeasuredTable, ...]:
    """Return the tables of a log; OSU's logs do not say how many ranks there were. Other tests are left out.

    Raises:
        TopologyError: A row is cut off or has no positive time, `ranks` is needed and not given, or no test is read.
    """
    lines = text.splitlines()
    starts = [i for i, line in enumerate(lines) if _TITLE.match(line)]
    parts = list(zip(starts, [*starts[1:], len(lines)], strict=True))
    known = [(start, end) for start, end in parts if _test(_title(lines[start])["test"]) is not None]
    if not known:
        words = _title(lines[starts[0]])["test"]
        raise TopologyError(
            f"{source}: line {starts[0] + 1}: OSU's {words!r} is not read; latency, bandwidth, blocking collectives are"
        )
    return tuple(_table(lines[start:end], start, source, ranks, len(starts)) for start, end in known)


def _title(line: str) -> re.Match[str]:
    match = _TITLE.match(line)
    assert match is not None
    return match


def _table(block: list[str], start: int, source: str, ranks: int | None, tables: int) -> MeasuredTable:
    title = _title(block[0])
    place = f"{source}: line {start + 1}"
    test = _test(title["test"])
    assert test is not None
    pairs = next((int(match[1]) for line in block if (match := _PAIRS.search(line))), None)
    scale = 1
    if test.collective in _PER_RANK:
        if ranks is None:
            raise TopologyError(
                f"{place}: sizes of {test.collective} are of one rank and OSU prints no number of ranks; give --ranks N"
            )
        scale = ranks
    heads = [i for i, line in enumerate(block) if _COLUMNS.match(line)]
    if not heads:
        raise TopologyError(f"{place}: no line of columns ('# Size ...') follows: the log is cut off")
    columns = _count_columns(block[heads[0]])
    rows = []
    for line, raw in enumerate(block[heads[0] + 1 :], start + heads[0] + 2):
        tokens = raw.split()
        if not tokens or not re.fullmatch(r"\d+(?:\.\d+)?", tokens[0]):
            continue
        rows.append(_row(f"{source}: line {line}", tokens, columns, test, scale, pairs or 1))
    if not rows:
        raise TopologyError(f"{source}: line {start + heads[0] + 1}: no rows follow the columns: the log is cut off")
    is_message = test.collective in ("message", "stream")
    return MeasuredTable(
        name=PurePath(source).stem + (f":{start + 1}" if tables > 1 else ""),
        source=source,
        collective=test.collective,
        library=f"MPI, OSU {title['version'] or ''}".rstrip(),
        ranks=2 * (pairs or 1) if is_message else ranks,
        hosts=None,
        rows=increasing(row for row in rows if row is not None),
        memory=_memory(title["device"], block),
        pairs=(pairs or 1) if is_message else None,
    )


def _test(words: str) -> _Test | None:
    """What a title's words are a test of; None: none that is read, such as both directions at once."""
    if words in _BANDWIDTHS:
        return _Test("stream", True)
    if words in ("Latency", "Multi Latency", "Multi-threaded Latency"):
        return _Test("message", False)
    name = words.removesuffix(" Latency").removesuffix(" Personalized Exchange")
    collective = collective_named(name)
    return None if collective is None else _Test(collective, False)


def _count_columns(line: str) -> int:
    """Columns of a header: names are two spaces or a unit in brackets apart."""
    return max(len(re.findall(r"\S+(?: \S+)*?(?=\s{2,}|$)", line.lstrip("# ").rstrip())), 1)


def _row(place: str, tokens: list[str], columns: int, test: _Test, scale: int, pairs: int) -> MeasuredRow | None:
    if test.collective == "barrier":
        return checked_row(place, 0, float(tokens[0]))
    if len(tokens) < max(columns, 2):
        raise TopologyError(
            f"{place}: a row of {len(tokens)} of {max(columns, 2)} columns: the log is cut off in the middle"
        )
    try:
        size, figure = int(tokens[0]), float(tokens[1])
    except ValueError:
        raise TopologyError(f"{place}: {' '.join(tokens)!r}: expected a size and a figure") from None
    if test.is_bandwidth:
        if figure <= 0:
            raise TopologyError(f"{place}: {figure:g} MB/s: expected a bandwidth over 0")
        return checked_row(place, size, size * pairs / figure) if size else None  # MB/s are bytes a us
    return checked_row(place, size * scale, figure)


def _memory(device: str | None, block: list[str]) -> Memory:
    """Device memory where the title or the line of buffers says so."""
    buffers = next((line for line in block if "Buffer on" in line), "")
    return "device" if device or "DEVICE" in buffers or "MANAGED" in buffers else "host"
