"""Checked reading of JSON values: a wrong one is refused with its path in the document.

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
"""A value of `json.loads`."""
T = TypeVar("T")

MOST = sys.float_info.max
"""Largest finite float: larger JSON numbers are read as infinite, or are integers that no float holds."""

MOST_SHOWN = 60
"""Characters of a wrong value that are shown."""
LARGEST = (1 << 31) - 1
"""Largest number of the columns of a schedule."""


class Whole(NamedTuple):
    """The range low..high of a whole number, and its meaning."""

    what: str
    high: int
    low: int = 0

    def __str__(self) -> str:
        return f"{self.what} {self.low}..{self.high}"


def refuse(where: str, expected: object, got: Json) -> NoReturn:
    """Raise a PlanError for a wrong value."""
    shown = repr(got)
    shown = f"{shown[:MOST_SHOWN]}..." if len(shown) > MOST_SHOWN else shown
    raise PlanError(f"{where}: expected {expected}, got {shown}")


def entry(document: Mapping[str, Json], key: str, where: str = "") -> Json:
    """Return the entry of the object at the path `where`."""
    if key not in document:
        raise PlanError(f"{below(where, key)}: missing")
    return document[key]


def below(where: str, key: str) -> str:
    """Return the path of an entry of the object at `where`; of the whole document, the key alone."""
    return f"{where}.{key}" if where else key


def an_object(value: Json, where: str) -> dict[str, Json]:
    """Return the value, an object."""
    if not isinstance(value, dict):
        refuse(where, "an object", value)
    return value


def a_list(value: Json, where: str) -> list[Json]:
    """Return the value, a list."""
    if not isinstance(value, list):
        refuse(where, "a list", value)
    return value


def a_text(value: Json, where: str) -> str:
    """Return the value, a string."""
    if not isinstance(value, str):
        refuse(where, "a string", value)
    return value


def one_of(value: Json, choices: Sequence[str], where: str) -> Any:
    """Return the value, one of these strings."""
    if not isinstance(value, str) or value not in choices:
        refuse(where, f"one of {', '.join(choices)}", value)
    return value


def a_whole(value: Json, kind: Whole, where: str) -> int:
    """Return the value, such a number."""
    if type(value) is not int or not kind.low <= value <= kind.high:
        refuse(where, kind, value)
    return value


def wholes(value: Json, kind: Whole, where: str) -> tuple[int, ...]:
    """Return the value, a list of such numbers."""
    return tuple(a_whole(item, kind, f"{where}[{index}]") for index, item in enumerate(a_list(value, where)))


def texts(value: Json, where: str) -> tuple[str, ...]:
    """Return the value, a list of strings."""
    return tuple(a_text(item, f"{where}[{index}]") for index, item in enumerate(a_list(value, where)))


def a_record(kind: type[T], value: Json, where: str, *, others: bool = False) -> T:
    """Return a dataclass of plain data from an object with its fields, and with `others` if allowed."""
    document = an_object(value, where)
    known = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
    for key in document:
        if key not in known and not others:
            raise PlanError(f"{below(where, key)}: unknown; expected {', '.join(known)}")
    values = {}
    for name, field in known.items():
        if name in document or field.default is MISSING:
            values[name] = _READERS[str(field.type)](entry(document, name, where), below(where, name))
    return kind(**values)


def table(rows: list[Json], columns: Sequence[Whole], form: str, place: Callable[[int], str]) -> NDArray[np.int64]:
    """Return int64 [len(rows), len(columns)] of lists of whole numbers.

    Raises:
        PlanError: A list has other numbers, or is none; names its `place` by index, and its `form` in words.
    """
    numbers = _in_bulk(rows, columns)
    if numbers is None:
        _refuse_rows(rows, columns, form, place)
    return numbers


def _in_bulk(rows: list[Json], columns: Sequence[Whole]) -> NDArray[np.int64] | None:
    """The table, checked in bulk; None where a number is wrong."""
    if not (set(map(type, rows)) <= {list} and set(map(len, rows)) <= {len(columns)}):
        return None
    flat = list(chain.from_iterable(rows))
    if not set(map(type, flat)) <= {int}:
        return None
    try:
        numbers = np.array(flat, dtype=np.int64).reshape(-1, len(columns))
    except OverflowError:
        return None
    low, high = [kind.low for kind in columns], [kind.high for kind in columns]
    return numbers if ((numbers >= low) & (numbers <= high)).all() else None


def _refuse_rows(rows: list[Json], columns: Sequence[Whole], form: str, place: Callable[[int], str]) -> NoReturn:
    """Raise the first fault of a table that has one."""
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
    """Return the value, a number of at least 0."""
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
"""Readers by the annotation of a dataclass field."""
