"""Slurm's lists of names: `node[1-3,07],login` is node1 node2 node3 node07 login."""

from __future__ import annotations

import re
from itertools import product

MAX_NAMES = 65_536
"""More in one list is no cluster but a slip."""

_PIECE = re.compile(r"\[([^\[\]]*)\]|([^\[\],]+)")
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")


def expand(text: str) -> list[str]:
    """The names of a list, in its order.

    Raises:
        ValueError: It is none; says what was expected.
    """
    found: list[str] = []
    for word in _words(text):
        parts: list[list[str]] = []
        end = 0
        for piece in _PIECE.finditer(word):
            if piece.start() != end:
                break
            end = piece.end()
            parts.append(_numbers(piece[1]) if piece[1] is not None else [piece[2]])
        if end != len(word) or not parts:
            raise ValueError(f"{word!r} is no name and no list; expected names such as node[1-4,7]")
        count = 1
        for part in parts:
            count *= len(part)
        if count + len(found) > MAX_NAMES:
            raise ValueError(f"{word!r} gives more than {MAX_NAMES} names")
        found += map("".join, product(*parts))
    return found


def _words(text: str) -> list[str]:
    """The text at its commas outside brackets; empty words are an error of `expand`."""
    words, depth, start = [], 0, 0
    for i, character in enumerate(text):
        depth += (character == "[") - (character == "]")
        if character == "," and depth == 0:
            words.append(text[start:i].strip())
            start = i + 1
    return [*words, text[start:].strip()]


def _numbers(text: str) -> list[str]:
    """`1-3,07` is 1 2 3 07: zeros in front are kept."""
    found: list[str] = []
    for part in text.split(","):
        ends = _RANGE.fullmatch(part.strip())
        low, high = (int(ends[1]), int(ends[2] or ends[1])) if ends else (1, 0)
        if ends is None or high < low:
            raise ValueError(f"{part.strip()!r} in brackets is no range; expected numbers such as 1-4")
        if high - low >= MAX_NAMES:
            raise ValueError(f"{part.strip()!r} gives more than {MAX_NAMES} names")
        found += [str(number).zfill(len(ends[1])) for number in range(low, high + 1)]
    return found
