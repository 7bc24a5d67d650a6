"""The affinity columns at the right of `nvidia-smi topo -m`, where cells can be blank.

Drivers add columns over the years: `CPU Affinity`, then `NUMA Affinity`, then `GPU NUMA ID`. With tabs, a CPU list
that is not there leaves an empty cell, and `N/A` as well as every `GPU NUMA ID` stands behind two tabs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

CPU, NUMA, GPU_NUMA = "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"

_TAIL = re.compile(
    r"(?:\b|(?<=inity))(?:(CPU)[\s_-]*Aff(?:inity|\w*)|(NUMA)(?:[\s_-]*Aff(?:inity|\w*)|\s*$)"
    r"|(GPU)[\s_-]+NUMA\b[\s_-]*(?:ID)?)",
    re.IGNORECASE,
)
TAB_STOP, SLACK = 8, 2
"""Columns; a code may start one right of its header (` X `)."""
BY_TAB, UNALIGNED = -1, -2
"""For an offset: the row was split by tabs, or its cells do not stand below their names."""
_NUMBER = r"(?:0|[1-9]\d*)"
_CPU_LIST = re.compile(rf"{_NUMBER}(?:-{_NUMBER})?(?:,{_NUMBER}(?:-{_NUMBER})?)*")


class Tail(NamedTuple):
    """One affinity column of the header, and how far right of the first column its name starts."""

    name: str
    offset: int


def find_tails(header: str) -> tuple[Tail, ...]:
    """The affinity columns that a header line (tabs expanded) names, with their offsets in the line."""
    return tuple(
        Tail(CPU if m.group(1) else NUMA if m.group(2) else GPU_NUMA, m.start()) for m in _TAIL.finditer(header)
    )


def split_tail(tails: Sequence[Tail], text: str, offset: int) -> dict[str, str]:
    """The affinity cells of one row by column name; blank ones are absent.

    Args:
        tails: The columns of the header.
        text: What follows the codes.
        offset: How far right of the first code `text` starts, tabs expanded; or BY_TAB, or UNALIGNED.
    """
    values = text.split()
    if len(values) > len(tails):
        return {}
    blank = offset == BY_TAB and not text.split("\t")[0].strip() and bool(values) and values[0].isdigit()
    if len(values) == len(tails) and not blank:
        return {tail.name: value for tail, value in zip(tails, values, strict=True)}
    names = [tail.name for tail in tails]
    if offset == UNALIGNED:
        return {}
    if offset == BY_TAB:
        places = _by_tab(text, names)
    else:
        places = _by_offset(tails, [offset + m.start() for m in re.finditer(r"\S+", text)], values[:1])
    return dict(zip(places, values, strict=False))


def _by_tab(text: str, names: list[str]) -> list[str]:
    """Column names of the filled cells: the first cell is the CPU list, and empty if there is none."""
    filled = [i for i, cell in enumerate(text.split("\t")) if cell.strip()]
    if CPU in names and filled and filled[0] > 0:
        names = [name for name in names if name != CPU]
    elif len(filled) == 2 and filled[1] >= 3 and names == [CPU, NUMA, GPU_NUMA]:
        names = [CPU, GPU_NUMA]
    return names


def _by_offset(tails: Sequence[Tail], starts: list[int], first: list[str]) -> list[str]:
    """Column names by the nearest header name, in order, leaving one for each cell further right.

    The tool leaves the CPU list blank, but no other cell, and every cell starts below its header or at a tab stop
    right of it: a first cell that starts a tab stop right of `CPU Affinity` is the next column's. Between these, as
    in copies with squeezed blanks, nothing tells which cell is missing; nor whether a single number is a CPU or a node.
    """
    places: list[str] = []
    left = list(tails)
    if left and left[0].name == CPU and starts:
        beyond = starts[0] - left[0].offset
        if beyond >= TAB_STOP - SLACK:
            left = left[1:]
        elif abs(beyond) > SLACK or first[0].isdigit():
            return []
    for i, start in enumerate(starts):
        open_for_this = left[: len(left) - (len(starts) - i - 1)]
        nearest = min(open_for_this, key=lambda tail: abs(tail.offset - start))
        places.append(nearest.name)
        left = left[left.index(nearest) + 1 :]
    return places


def cpu_list(text: str) -> str | None:
    """The text if it is a CPU list in rising order (`0-31,64-95`), else None: a list that lost its head or tail."""
    if not _CPU_LIST.fullmatch(text):
        return None
    ends = [int(number) for part in text.split(",") for number in part.split("-")]
    return text if all(a <= b for a, b in pairwise(ends)) else None


def numa_node(text: str) -> int | str | None:
    """The NUMA number, the list as printed where there are several (`0-1`), None if it is neither."""
    if re.fullmatch(_NUMBER, text, re.ASCII):
        return int(text[:9])
    return cpu_list(text)
