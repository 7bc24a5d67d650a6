"""Text that nccl-tests and rccl-tests print, of old and new versions, with what NCCL_DEBUG prints between the rows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import PurePath
from typing import NamedTuple

from topocomm.calibration.measured_table import (
    MeasuredRow,
    MeasuredTable,
    check_bandwidth,
    checked_row,
    collective_named,
    increasing,
)
from topocomm.errors import TopologyError

HEADER = re.compile(r"^#\s+size\s+count\b.*\balgbw\b")
TRAILER = "# Avg bus bandwidth"
"""Begin of the last line of a run."""
_DEBUG = re.compile(
    r"(?:\[[-\d: .]+\]\s*)?[A-Za-z][\w.-]*:\d+:\d+\s.*|\bNCCL (?:INFO|WARN|TRACE|VERSION)\b.*|\bRCCL version\b.*"
)
"""What NCCL prints by itself, from anywhere in a line to its end."""
_TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\d|\d\d:\d\d:\d\d(?:\.\d+)?")
_RANK = re.compile(r"^#\s+Rank\s+(\d+)\b.*\bon\s+(\S+)\s+device\b")
_VERSION = re.compile(r"\b(NCCL|RCCL) version\s*:?\s*([\d.]+\S*)")
_LIBRARY = re.compile(r"\bnccl-library=(\d+)")
_RANGE = re.compile(r"\bmaxBytes\s+(\d+)\s+step:\s*(\d+)\((factor|bytes)\)")
_TEST = re.compile(r"\b([a-z]+(?:_[a-z]+)*?)_perf(?:_mpi)?\b")
_TAG = re.compile(r"^\s*(?:\[\d+,\d+\]<std(?:out|err)>:)?\s*")
"""Indentation, and what `mpirun --tag-output` puts before every line."""
_ENV = re.compile(r"\b(NCCL_(?:ALGO|PROTO|NET_GDR_LEVEL|TREE_THRESHOLD|NVLS_ENABLE|P2P_DISABLE|MAX_NCHANNELS))=(\S+)")


class _Columns(NamedTuple):
    """Names of the columns of a header line, and its line number."""

    names: tuple[str, ...]
    line: int


def matches(text: str) -> bool:
    """Whether the text has a header line of nccl-tests."""
    return any(HEADER.match(line) for line in _lines(text))


def read(text: str, source: str) -> tuple[MeasuredTable, ...]:
    """Return the tables of a log: out of place where it has these, else in place.

    Raises:
        TopologyError: A row is cut off, a time is not positive, or a bandwidth disagrees; file and line are named.
    """
    lines = _lines(text)
    heads = [i for i, line in enumerate(lines) if HEADER.match(line)]
    starts = [0, *(_block_start(lines, before, head) for before, head in pairwise(heads))]
    parts = zip(starts, [*starts[1:], len(lines)], strict=True)
    return tuple(_table(lines, start, end, source, len(heads)) for start, end in parts)


def _lines(text: str) -> list[str]:
    """The lines without what stands before them all."""
    return [_TAG.sub("", line) for line in text.splitlines()]


def _block_start(lines: list[str], before: int, head: int) -> int:
    """Index of the first line of the run whose header is at `head`: after the trailer of the run before."""
    ends = (i + 1 for i in range(head, before, -1) if lines[i].startswith(TRAILER))
    return next(ends, head)


def _table(lines: list[str], start: int, end: int, source: str, tables: int) -> MeasuredTable:
    block = lines[start:end]
    head = next(i for i, line in enumerate(block) if HEADER.match(line))
    columns = _Columns(tuple(block[head].lstrip("# ").split()), start + head + 1)
    rows, ratios = [], []
    for line, tokens in _rows(block, head, columns, source, start):
        row, ratio = _row(f"{source}: line {line}", columns, tokens)
        rows.append(row)
        ratios.append(ratio)
    if not rows:
        raise TopologyError(f"{source}: line {columns.line}: no rows follow the columns; the log is cut off, or failed")
    words = "\n".join(block)
    complete = any(line.startswith(TRAILER) for line in block)
    if not complete:
        _check_reached(words, rows[-1], f"{source}: line {end}")
    places = [match for line in block[:head] if (match := _RANK.match(line))]
    collective = _collective(words, source)
    return MeasuredTable(
        name=PurePath(source).stem + (f":{columns.line}" if tables > 1 else ""),
        source=source,
        collective=collective or _by_columns(columns, source),
        library=_library(words),
        ranks=len({match[1] for match in places}) or None,
        hosts=len({match[2] for match in places}) or None,
        rows=increasing(rows),
        env=dict(_ENV.findall(words)),
        warnings=() if complete else (f"{source}: no line of the average bandwidth: the log may be cut off",),
    )


def _rows(block: list[str], head: int, columns: _Columns, source: str, start: int) -> Iterator[tuple[int, list[str]]]:
    """(line number, tokens) of every row; tokens that debug output split over several lines are joined."""
    wanted = len([name for name in columns.names if name != "timestamp"])
    pending: list[str] = []
    began = 0
    for i, raw in enumerate(block[head + 1 :], start + head + 2):
        line = _DEBUG.sub("", raw.partition("#")[0] if raw.lstrip().startswith("#") else raw)
        tokens = [token for token in line.split() if not _TIMESTAMP.fullmatch(token)]
        starts_row = len(tokens) > 1 and tokens[0].isdecimal() and (tokens[1].isdecimal() or not pending)
        if not tokens or not (starts_row or (pending and _is_number(tokens[0]))):
            if not pending and len(tokens) == 1 and tokens[0].isdecimal() and i == start + len(block):
                pending, began = tokens, i  # the last line, cut within its first number or after it
            continue
        if pending and len(pending) + len(tokens) > wanted:
            raise TopologyError(_cut(source, began, pending, wanted))
        if not pending:
            began = i
        pending += tokens
        if len(pending) > wanted:
            raise TopologyError(f"{source}: line {i}: {len(pending)} columns; line {columns.line} names {wanted}")
        if len(pending) == wanted:
            yield began, pending
            pending = []
    if pending:
        raise TopologyError(_cut(source, began, pending, wanted))


def _cut(source: str, line: int, tokens: list[str], wanted: int) -> str:
    return f"{source}: line {line}: a row of {len(tokens)} of {wanted} columns: the log is cut off in the middle"


def _is_number(token: str) -> bool:
    return token == "N/A" or re.fullmatch(r"[-+]?[\d.]+(?:e[-+]?\d+)?|inf|nan", token) is not None


def _row(place: str, columns: _Columns, tokens: list[str]) -> tuple[MeasuredRow, float | None]:
    """A row, and its bus bandwidth over its algorithm bandwidth."""
    times = [i for i, name in enumerate(columns.names) if name in ("time", "cputime")]
    usable = [i for i in times if tokens[i] != "N/A"]
    if not usable:
        raise TopologyError(f"{place}: no time, out of place or in place")
    first = usable[0]
    try:
        row = checked_row(place, int(tokens[0]), float(tokens[first]))
        algbw, busbw = tokens[first + 1], tokens[first + 2]
        check_bandwidth(place, row, algbw, tokens[first])
        return row, float(busbw) / float(algbw) if float(algbw) > 1 else None
    except ValueError as error:
        if isinstance(error, TopologyError):
            raise
        raise TopologyError(f"{place}: {' '.join(tokens)!r}: expected numbers under {columns.names[first:]}") from None


def _check_reached(words: str, last: MeasuredRow, place: str) -> None:
    """Check that a log without its last line has all the sizes that its first lines announce."""
    announced = _RANGE.search(words)
    if announced is None:
        return
    most, step, kind = int(announced[1]), int(announced[2]), announced[3]
    following = last.payload_bytes * step if kind == "factor" else last.payload_bytes + step
    if following <= most:
        raise TopologyError(
            f"{place}: the log ends at {last.payload_bytes} bytes, its first lines announce {most}: it is cut off"
        )


def _collective(words: str, source: str) -> str | None:
    for text in (words, PurePath(source).name):
        for match in _TEST.finditer(text):
            if name := collective_named(match[1].removeprefix("result_")):
                return name
    flat = re.sub(r"[^a-z]", "", PurePath(source).stem.lower())
    long_first = ("reducescatter", "allreduce", "allgather", "alltoall", "sendrecv", "broadcast")
    return next((collective_named(name) for name in long_first if name in flat), None)


def _by_columns(columns: _Columns, source: str) -> str:
    """The collective of an old log that does not name it, where its columns tell."""
    has = {"redop", "root"} & set(columns.names)
    if has == {"redop"}:
        return "allreduce"
    if has == {"root"}:
        return "broadcast"
    raise TopologyError(
        f"{source}: line {columns.line}: the log does not name its collective; name the file after it "
        "(all_gather_perf.log), or keep the line '# Collective test starting: ...'"
    )


def _library(words: str) -> str:
    if match := _VERSION.search(words):
        return f"{match[1]} {match[2]}"
    if match := _LIBRARY.search(words):
        number = int(match[1])
        return f"NCCL {number // 10000}.{number // 100 % 100}.{number % 100}"
    return "RCCL" if "rccl-tests" in words.lower() else "NCCL"
