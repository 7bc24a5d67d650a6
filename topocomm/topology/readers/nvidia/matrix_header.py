"""The header of a matrix of pair codes: its columns of devices, and the affinity columns at its right.

Drivers added affinity columns over the years: `CPU Affinity`, then `NUMA Affinity`, then `GPU NUMA ID`. With tabs, a
CPU list that is missing leaves an empty cell, and `N/A` as well as every `GPU NUMA ID` stands behind two tabs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import islice, pairwise, takewhile
from typing import NamedTuple

from topocomm.topology.readers.plain.paste import ELISIONS, filled_lines

CODE = re.compile(r"X|NV\d+|PIX|PXB|PHB|NODE|SYS|SOC")
CODES = re.compile(rf"(?:{CODE.pattern})+")
GPU = re.compile(r"GPU\d+")
NAME = re.compile(r"(?=\S*\d)[A-Za-z][\w.:+-]*")
_FIRST_ROW = re.compile(rf"\s*GPU\d+\s+X\s+(?!X)(?:{CODE.pattern})(?=\s|$)")
_COMMAND = re.compile(r"^.*\btopo\s+-\S+\s+(?=GPU\d)")

CPU, NUMA, GPU_NUMA = "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"
TAB_STOP, SLACK = 8, 2
"""Columns; a code may start one right of its header (` X `)."""
BY_TAB, UNALIGNED = -1, -2
"""For an offset: the row was split by tabs, or its cells do not stand below their names."""
_AFFINITY = re.compile(
    r"(?:\b|(?<=inity))(?:(CPU)[\s_-]*Aff(?:inity|\w*)|(NUMA)(?:[\s_-]*Aff(?:inity|\w*)|\s*$)"
    r"|(GPU)[\s_-]+NUMA\b[\s_-]*(?:ID)?)",
    re.IGNORECASE,
)
_NUMBER = r"(?:0|[1-9]\d*)"
_CPU_LIST = re.compile(rf"{_NUMBER}(?:-{_NUMBER})?(?:,{_NUMBER}(?:-{_NUMBER})?)*")


class Header(NamedTuple):
    """What the header names. Line indices count from 0."""

    line: int
    names: tuple[str, ...]
    affinity: tuple[tuple[str, int], ...]
    """Names of the columns, and how far right of the first device column each name starts, tabs expanded."""
    first_row: int
    width: int
    """Columns from the start of the first name to the start of the last, tabs expanded; -1 without a header."""


def find_header(lines: Sequence[str]) -> Header | None:
    """Return the first header of the text, or one made of the rows where it is missing; None for other texts."""
    for index, line in enumerate(lines):
        if "GPU" in line and GPU.search(line) and (header := header_at(lines, index)) is not None:
            return header
    return _implied_header(lines)


def header_at(lines: Sequence[str], index: int) -> Header | None:
    """Return the header on a line: device names, GPU first, and within the next three lines a row of codes."""
    text = lines[index].expandtabs(TAB_STOP)
    text = _COMMAND.sub("", text, count=1) if "topo" in text else text
    affinity = [(CPU if m[1] else NUMA if m[2] else GPU_NUMA, m.start()) for m in _AFFINITY.finditer(text)]
    end = affinity[0][1] if affinity else len(text)
    names = text[:end].split()
    if not names or not GPU.fullmatch(names[0]) or len(set(names)) < len(names):
        return None
    if not all(name in ELISIONS or (NAME.fullmatch(name) and not CODES.fullmatch(name)) for name in names):
        return None
    below = islice(filled_lines(lines, index + 1), 3)
    if not any(tokens[0] in names and are_codes(tokens[1:2]) for _, tokens in below):
        return None
    first = text.index(names[0])
    columns = tuple((name, start - first) for name, start in affinity)
    return Header(index, tuple(names), columns, index + 1, text.rindex(names[-1], 0, end) - first)


def _implied_header(lines: Sequence[str]) -> Header | None:
    """Return the header that rows of a square matrix with X on the diagonal imply: they name their own columns."""
    rows = [(i, t) for i, t in filled_lines(lines) if len(t) > 2 and NAME.fullmatch(t[0]) and are_codes(t[1:3])]
    if not rows or not GPU.fullmatch(rows[0][1][0]):
        return None
    count = sum(1 for _ in takewhile(CODE.fullmatch, rows[0][1][1:]))
    square = [tokens for _, tokens in rows[:count]]
    names = tuple(tokens[0] for tokens in square)
    if len(set(names)) != count or any(tokens[i + 1 : i + 2] != ["X"] for i, tokens in enumerate(square)):
        return None
    return Header(rows[0][0], names, (), rows[0][0], -1)


def first_row_of_a_gpu(lines: Sequence[str]) -> int | None:
    """Return the first line that can only be the row of a GPU: its own X and another code follow."""
    return next((i for i, line in enumerate(lines) if "GPU" in line and _FIRST_ROW.match(line)), None)


def are_codes(tokens: Sequence[str]) -> bool:
    """Return whether there are tokens, each a code or codes run together."""
    return bool(tokens) and all(CODES.fullmatch(token) for token in tokens)


def whole_side(cells: Sequence[str | None], count: int, own: int) -> list[str | None]:
    """Return the cells of a row by column: of a row that lost some, the side of its X that is whole; None elsewhere.

    `own` is the row's own column, -1 where the header has none.
    """
    aligned: list[str | None] = [None] * count
    if own >= 0 and cells.count("X") == 1:
        own_cell = cells.index("X")
        if own_cell == own:
            aligned[: own + 1] = cells[: own + 1]
        if len(cells) - own_cell == count - own:
            aligned[own:] = cells[own_cell:]
    return aligned


def split_affinity(columns: Sequence[tuple[str, int]], text: str, offset: int) -> dict[str, str]:
    """Return the affinity cells of one row by column name; blank ones are absent.

    `offset` is how far right of the first code `text` starts, tabs expanded; or BY_TAB, or UNALIGNED.
    """
    values = text.split()
    if len(values) > len(columns):
        return {}
    names = [name for name, _ in columns]
    blank = offset == BY_TAB and not text.split("\t")[0].strip() and bool(values) and values[0].isdigit()
    if len(values) < len(columns) or blank:
        if offset == UNALIGNED:
            return {}
        if offset == BY_TAB:
            names = _by_tab(text, names)
        else:
            names = _by_offset(columns, [offset + m.start() for m in re.finditer(r"\S+", text)], values[:1])
    return dict(zip(names, values, strict=False))


def _by_tab(text: str, names: list[str]) -> list[str]:
    """Return the names of the filled cells: the first cell is the CPU list, and empty if there is none."""
    filled = [i for i, cell in enumerate(text.split("\t")) if cell.strip()]
    if CPU in names and filled and filled[0] > 0:
        return [name for name in names if name != CPU]
    if len(filled) == 2 and filled[1] >= 3 and names == [CPU, NUMA, GPU_NUMA]:
        return [CPU, GPU_NUMA]
    return names


def _by_offset(columns: Sequence[tuple[str, int]], starts: list[int], first: list[str]) -> list[str]:
    """Return the nearest column names, in order, leaving one for each cell further right.

    The tool leaves the CPU list blank, but no other cell, and every cell starts below its header or at a tab stop
    right of it: a first cell that starts a tab stop right of `CPU Affinity` is the next column's. Between these, as
    in copies with squeezed blanks, nothing tells which cell is missing; nor whether a single number is a CPU or a node.
    """
    names: list[str] = []
    left = list(columns)
    if left and left[0][0] == CPU and starts:
        beyond = starts[0] - left[0][1]
        if beyond >= TAB_STOP - SLACK:
            left = left[1:]
        elif abs(beyond) > SLACK or first[0].isdigit():
            return []
    for i, start in enumerate(starts):
        candidates = left[: len(left) - (len(starts) - i - 1)]
        nearest = min(candidates, key=lambda column: abs(column[1] - start))
        names.append(nearest[0])
        left = left[left.index(nearest) + 1 :]
    return names


def cpu_list(text: str) -> str | None:
    """Return the text if it is a CPU list in rising order (`0-31,64-95`); None for one that lost its head or tail."""
    if not _CPU_LIST.fullmatch(text):
        return None
    ends = [int(number) for part in text.split(",") for number in part.split("-")]
    return text if all(a <= b for a, b in pairwise(ends)) else None


def numa_node(text: str) -> int | str | None:
    """Return the NUMA number, or the list as printed where there are several (`0-1`); None for other texts."""
    if re.fullmatch(_NUMBER, text, re.ASCII):
        return int(text[:9])
    return cpu_list(text)
