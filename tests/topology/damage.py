"""Damages texts in ways that captures are damaged in, and holds a reader to its promise: facts, or one clear error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Protocol

from topocomm.errors import TopologyError

Change = Callable[[str, Random], str]


class Reader(Protocol):
    """A module that reads one format."""

    def matches(self, text: str) -> bool: ...
    def read(self, text: str, source: str) -> Any: ...


def attempt(reader: Reader, text: str, name: str = "dump.txt") -> Any:
    """What a reader makes of a text, or the message of its TopologyError, which names the file; nothing else comes."""
    reader.matches(text)
    try:
        return reader.read(text, name)
    except TopologyError as error:
        message = str(error)
    assert message.startswith(name)
    return message


def attempts(
    reader: Reader,
    texts: Sequence[str],
    changes: Sequence[Change],
    *,
    seed: int,
    times: int,
    most: int = 3,
    name: str = "dump.txt",
) -> tuple[list[Any], list[str]]:
    """Reads texts after one to `most` changes each: all that was still read, and the messages of all refusals."""
    random = Random(seed)
    found = []
    for _ in range(times):
        text = random.choice(texts)
        for _ in range(random.randint(1, most)):
            text = random.choice(changes)(text, random)
        found.append(attempt(reader, text, name))
    return [one for one in found if not isinstance(one, str)], [one for one in found if isinstance(one, str)]


def put(pieces: Sequence[str], lengths: Sequence[int] = (1,)) -> Change:
    """Puts one of the pieces in the place of as many characters as one of the lengths says; 0 inserts it."""

    def change(text: str, random: Random) -> str:
        where = random.randrange(len(text) + 1)
        return text[:where] + random.choice(pieces) + text[where + random.choice(lengths) :]

    return change


def cut(text: str, random: Random) -> str:
    """The text ends early."""
    return text[: random.randrange(len(text) + 1)]


def of_lines(edit: Callable[[list[str], Random], None]) -> Change:
    """A change of lines in place, each with its end."""

    def change(text: str, random: Random) -> str:
        lines = text.splitlines(keepends=True) or [""]
        edit(lines, random)
        return "".join(lines)

    return change


def of_a_line(change: Change) -> Change:
    """The change inside one line, whose end stays."""

    def edit(lines: list[str], random: Random) -> None:
        i = random.randrange(len(lines))
        body = lines[i].rstrip("\r\n")
        lines[i] = change(body, random) + lines[i][len(body) :]

    return of_lines(edit)


def lose_lines(most: int = 1) -> Change:
    """Loses one to `most` lines below each other."""

    def edit(lines: list[str], random: Random) -> None:
        start = random.randrange(len(lines))
        del lines[start : start + random.randint(1, most)]

    return of_lines(edit)


@of_lines
def swap_lines(lines: list[str], random: Random) -> None:
    """Two lines change places."""
    i, j = random.randrange(len(lines)), random.randrange(len(lines))
    lines[i], lines[j] = lines[j], lines[i]


cut_line = of_a_line(cut)
"""A line ends early."""


@of_lines
def glue_line(lines: list[str], random: Random) -> None:
    """A line ends early and the next one follows on it."""
    i = random.randrange(len(lines))
    lines[i] = lines[i][: random.randrange(len(lines[i]) or 1)]
