"""The header of a matrix of pair codes: where it is, and the columns that it names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from topocomm.topology.readers.nvidia.affinity import Tail, find_tails

CODE = re.compile(r"X|NV\d+|PIX|PXB|PHB|NODE|SYS|SOC")
CODES = re.compile(rf"(?:{CODE.pattern})+")
GPU = re.compile(r"GPU\d+")
_FIRST_ROW = re.compile(rf"\s*GPU\d+\s+X\s+(?!X)(?:{CODE.pattern})(?=\s|$)")
NAME = re.compile(r"(?=\S*\d)[A-Za-z][\w.:+-]*")
_COMMAND = re.compile(r"^.*\btopo\s+-\S+\s+(?=GPU\d)")
ELISIONS = {"..", "...", "....", "…", "[...]", "⋮"}


class Header(NamedTuple):
    """What the header names. Line indices count from 0."""

    line: int
    names: tuple[str, ...]
    tails: tuple[Tail, ...]
    first_row: int
    width: int
    """Columns from the start of the first name to the start of the last, tabs expanded; -1 without a header."""


def find_header(lines: Sequence[str]) -> Header | None:
    """The first header of the text, or one made of the rows where it is missing; None for other texts."""
    for index, line in enumerate(lines):
        if "GPU" in line and GPU.search(line):
            header = header_at(lines, index)
            if header is not None:
                return header
    return _implied_header(lines)


def header_at(lines: Sequence[str], index: int) -> Header | None:
    """The header on this line: device names, GPU first, and within the next three lines a row of codes."""
    text = lines[index].expandtabs(8)
    text = _COMMAND.sub("", text, count=1) if "topo" in text else text
    tails = find_tails(text)
    names = text[: tails[0].offset if tails else len(text)].split()
    if not names or not GPU.fullmatch(names[0]) or len(set(names)) < len(names):
        return None
    if not all(name in ELISIONS or (NAME.fullmatch(name) and not CODES.fullmatch(name)) for name in names):
        return None
    below = islice(filled(lines, index + 1), 3)
    if not any(tokens[0] in names and are_codes(tokens[1:2]) for _, tokens in below):
        return None
    first = text.index(names[0])
    width = text.rindex(names[-1], 0, tails[0].offset if tails else len(text)) - first
    return Header(index, tuple(names), tuple(t._replace(offset=t.offset - first) for t in tails), index + 1, width)


def _implied_header(lines: Sequence[str]) -> Header | None:
    """The header that is not there: rows of a square matrix with X on the diagonal name their own columns."""
    rows = [(i, t) for i, t in filled(lines, 0) if len(t) > 2 and NAME.fullmatch(t[0]) and are_codes(t[1:3])]
    if not rows or not GPU.fullmatch(rows[0][1][0]):
        return None
    count = sum(1 for _ in leading_codes(rows[0][1][1:]))
    square = [tokens for _, tokens in rows[:count]]
    names = tuple(tokens[0] for tokens in square)
    if len(set(names)) != count or any(tokens[i + 1 : i + 2] != ["X"] for i, tokens in enumerate(square)):
        return None
    return Header(rows[0][0], names, (), rows[0][0], -1)


def first_row_of_a_gpu(lines: Sequence[str]) -> int | None:
    """The first line that can only be the row of a GPU: its own X and another code follow."""
    return next((i for i, line in enumerate(lines) if "GPU" in line and _FIRST_ROW.match(line)), None)


def leading_codes(tokens: Sequence[str]) -> Iterator[str]:
    """The codes that the tokens begin with."""
    for token in tokens:
        if not CODE.fullmatch(token):
            return
        yield token


def filled(lines: Sequence[str], start: int) -> Iterator[tuple[int, list[str]]]:
    """Lines that are not blank, from an index on, with their tokens."""
    for index in range(start, len(lines)):
        tokens = lines[index].split()
        if tokens:
            yield index, tokens


def are_codes(tokens: Sequence[str]) -> bool:
    """Whether there are tokens, each a code or codes run together."""
    return bool(tokens) and all(CODES.fullmatch(token) for token in tokens)
