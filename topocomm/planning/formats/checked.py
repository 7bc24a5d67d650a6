"""Reading JSON values that may be anything: what does not fit is refused with its path in the document.

schedule.rounds[3].transfers[17][1]: expected a rank 0..7, got 9
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields
from itertools import chain
from typing import Any, NamedTuple, NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray

from topocomm.errors import PlanError

Json = Any
"""What `json.loads` gives."""
T = TypeVar("T")

MOST = sys.float_info.max
"""Beyond it a number of JSON is read as infinite, or is an integer that no float holds."""

MOST_SHOWN = 60
LARGEST = (1 << 31) - 1
"""The greatest number that the columns of a schedule hold."""


class Whole(NamedTuple):
    """A whole number low..high that stands for something."""

    what: str
    high: int
    low: int = 0

    def __str__(self) -> str:
        return f"{self.what} {self.low}..{self.high}"


def refuse(where: str, expected: object, got: Json) -> NoReturn:
    """Say that a value is not what it must be."""
    shown = repr(got)
    shown = f"{shown[:MOST_SHOWN]}..." if len(shown) > MOST_SHOWN else shown
    raise PlanError(f"{where}: expected {expected}, got {shown}")


def entry(document: Mapping[str, Json], key: str, where: str = "") -> Json:
    """The entry of an object.

    Args:
        document: The object.
        key: Of the entry.
        where: Path of the object.
    """
    if key not in document:
        raise PlanError(f"{below(where, key)}: missing")
    return document[key]


def below(where: str, key: str) -> str:
    """The path of an entry of the object at `where`; of the whole document, the key alone."""
    return f"{where}.{key}" if where else key


def an_object(value: Json, where: str) -> dict[str, Json]:
    """The value, an object."""
    if not isinstance(value, dict):
        refuse(where, "an object", value)
    return value


def a_list(value: Json, where: str) -> list[Json]:
    """The value, a list."""
    if not isinstance(value, list):
        refuse(where, "a list", value)
    return value


def a_text(value: Json, where: str) -> str:
    """The value, a string."""
    if not isinstance(value, str):
        refuse(where, "a string", value)
    return value


def one_of(value: Json, choices: Sequence[str], where: str) -> Any:
    """The value, one of these strings."""
    if not isinstance(value, str) or value not in choices:
        refuse(where, f"one of {', '.join(choices)}", value)
    return value


def a_whole(value: Json, kind: Whole, where: str) -> int:
    """The value, such a number."""
    if type(value) is not int or not kind.low <= value <= kind.high:
        refuse(where, kind, value)
    return value


def wholes(value: Json, kind: Whole, where: str) -> tuple[int, ...]:
    """The value, a list of such numbers."""
    return tuple(a_whole(item, kind, f"{where}[{index}]") for index, item in enumerate(a_list(value, where)))


def texts(value: Json, where: str) -> tuple[str, ...]:
    """The value, a list of strings."""
    return tuple(a_text(item, f"{where}[{index}]") for index, item in enumerate(a_list(value, where)))


def a_record(kind: type[T], value: Json, where: str, *, others: bool = False) -> T:
    """A dataclass of plain data from an object that has its fields.

    Args:
        kind: The dataclass.
        value: The object.
        where: Its path.
        others: Whether the object may have entries that are no fields.
    """
    document = an_object(value, where)
    known = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
    for key in document:
        if key not in known and not others:
            raise PlanError(f"{below(where, key)}: unknown; expected {', '.join(known)}")
    made = {}
    for name, field in known.items():
        if name in document or field.default is MISSING:
            made[name] = _READERS[str(field.type)](entry(document, name, where), below(where, name))
    return kind(**made)


def table(rows: list[Json], columns: Sequence[Whole], form: str, place: Callable[[int], str]) -> NDArray[np.int64]:
    """int64 [len(rows), len(columns)] of lists of whole numbers.

    Args:
        rows: The lists.
        columns: What the numbers of each stand for.
        form: A list in words, for messages.
        place: Path of a list, by its index.

    Raises:
        PlanError: A list has other numbers, or is none.
    """
    found = _in_bulk(rows, columns)
    if found is None:
        _refuse_rows(rows, columns, form, place)
    return found


def _in_bulk(rows: list[Json], columns: Sequence[Whole]) -> NDArray[np.int64] | None:
    """The table without a look at single numbers; None where one of them is wrong."""
    if not (set(map(type, rows)) <= {list} and set(map(len, rows)) <= {len(columns)}):
        return None
    flat = list(chain.from_iterable(rows))
    if not set(map(type, flat)) <= {int}:
        return None
    try:
        found = np.array(flat, dtype=np.int64).reshape(-1, len(columns))
    except OverflowError:
        return None
    low, high = [kind.low for kind in columns], [kind.high for kind in columns]
    return found if ((found >= low) & (found <= high)).all() else None


def _refuse_rows(rows: list[Json], columns: Sequence[Whole], form: str, place: Callable[[int], str]) -> NoReturn:
    """Find the first fault of a table that has one."""
    for index, row in enumerate(rows):
        if not isinstance(row, list) or len(row) != len(columns):
            refuse(place(index), form, row)
        for column, (kind, value) in enumerate(zip(columns, row, strict=True)):
            a_whole(value, kind, f"{place(index)}[{column}]")
    raise AssertionError("a table without a fault was refused")


def _flag(value: Json, where: str) -> bool:
    if not isinstance(value, bool):
        refuse(where, "true or false", value)
    return value


def _count(value: Json, where: str) -> int:
    if type(value) is not int or value < 0:
        refuse(where, "a number, whole and not below 0", value)
    return value


def _number(value: Json, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not -MOST <= value <= MOST:
        refuse(where, "a number", value)
    return value


def a_figure(value: Json, where: str) -> float:
    """A number of at least 0."""
    if _number(value, where) < 0:
        refuse(where, "a number of at least 0", value)
    return float(value)


def _number_or_null(value: Json, where: str) -> float | None:
    return None if value is None else _number(value, where)


def _objects(value: Json, where: str) -> tuple[dict[str, Json], ...]:
    return tuple(an_object(item, f"{where}[{index}]") for index, item in enumerate(a_list(value, where)))


_READERS: dict[str, Callable[[Json, str], Any]] = {
    "bool": _flag,
    "int": _count,
    "float": _number,
    "float | None": _number_or_null,
    "str": a_text,
    "dict[str, Any]": an_object,
    "tuple[dict[str, Any], ...]": _objects,
}
"""By the annotation of a dataclass field."""
