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

_TAIL = re.compile(r"\b(?:(CPU)[\s_-]*Aff\w*|(NUMA)[\s_-]*Aff\w*|(GPU)[\s_-]+NUMA\b[\s_-]*(?:ID)?)", re.IGNORECASE)
_CPU_LIST = re.compile(r"\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*")


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
        offset: How far right of the first code `text` starts, tabs expanded; -1 if it is the rest of a row that
            was split by tabs.
    """
    values = text.split()
    if len(values) > len(tails):
        return {}
    if len(values) == len(tails):
        return {tail.name: value for tail, value in zip(tails, values, strict=True)}
    names = [tail.name for tail in tails]
    if offset < 0:
        places = _by_tab(text, names)
    else:
        places = _by_offset(tails, [offset + m.start() for m in re.finditer(r"\S+", text)])
    return dict(zip(places, values, strict=False))


def _by_tab(text: str, names: list[str]) -> list[str]:
    """Column names of the filled cells: the first cell is the CPU list, and empty if there is none."""
    filled = [i for i, cell in enumerate(text.split("\t")) if cell.strip()]
    if CPU in names and filled and filled[0] > 0:
        names = [name for name in names if name != CPU]
    elif len(filled) == 2 and filled[1] >= 3 and names == [CPU, NUMA, GPU_NUMA]:
        names = [CPU, GPU_NUMA]
    return names


def _by_offset(tails: Sequence[Tail], starts: list[int]) -> list[str]:
    """Column names by the nearest header name, in order, leaving one for each cell further right."""
    places: list[str] = []
    left = list(tails)
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
    if text.isascii() and text.isdigit():
        return int(text[:9])
    return cpu_list(text)
