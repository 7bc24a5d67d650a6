"""Checked reading of JSON values: a wrong one is refused with its path in the document.

schedule.rounds[3].transfers[17][1]: expected a rank 0..7, got 9
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields
from itertools import chain
from typing import Any, NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray

from topocomm.errors import PlanError

Json = Any
"""A value of `json.loads`."""
T = TypeVar("T")
Reader = Callable[[Json, str], T]
"""Takes a value and its path; returns it, or refuses it."""

MOST = sys.float_info.max
"""Largest finite float: larger JSON numbers are read as infinite, or are integers that no float holds."""

MOST_SHOWN = 60
"""Characters of a wrong value that are shown."""
LARGEST = (1 << 31) - 1
"""Largest number of the columns of a schedule."""


@dataclass(frozen=True)
class Whole:
    """The range low..high of a whole number, and its meaning; reads such numbers."""

    what: str
    high: int
    low: int = 0

    def __call__(self, value: Json, where: str) -> int:
        """Return the value, a number in the range."""
        if type(value) is not int or not self.low <= value <= self.high:
            refuse(where, f"{self.what} {self.low}..{self.high}", value)
        return value


def refuse(where: str, expected: str, got: Json) -> NoReturn:
    """Raise a PlanError for a wrong value."""
    shown = repr(got)
    shown = f"{shown[:MOST_SHOWN]}..." if len(shown) > MOST_SHOWN else shown
    raise PlanError(f"{where}: expected {expected}, got {shown}")


def entry(document: Mapping[str, Json], key: str, read: Reader[T], where: str = "") -> T:
    """Return an entry of the object at the path `where`; the whole document has none."""
    path = f"{where}.{key}" if where else key
    if key not in document:
        raise PlanError(f"{path}: missing")
    return read(document[key], path)


def such(test: Callable[[Json], bool], expected: str) -> Reader[Any]:
    """Return the reader of values that pass a test."""

    def read(value: Json, where: str) -> Any:
        if not test(value):
            refuse(where, expected, value)
        return value

    return read


an_object: Reader[dict[str, Json]] = such(lambda value: isinstance(value, dict), "an object")
a_list: Reader[list[Json]] = such(lambda value: isinstance(value, list), "a list")
a_text: Reader[str] = such(lambda value: isinstance(value, str), "a string")
_number: Reader[float] = such(
    lambda value: not isinstance(value, bool) and isinstance(value, int | float) and -MOST <= value <= MOST, "a number"
)


def one_of(choices: Sequence[str]) -> Reader[Any]:
    """Return the reader of these strings."""
    return such(lambda value: value in choices, f"one of {', '.join(choices)}")


def each(read: Reader[T]) -> Reader[tuple[T, ...]]:
    """Return the reader of lists of such values."""
    return lambda value, where: tuple(
        read(item, f"{where}[{index}]") for index, item in enumerate(a_list(value, where))
    )


def a_record(kind: type[T], value: Json, where: str, *, others: bool = False) -> T:
    """Return a dataclass of plain data from an object with its fields, and with `others` if allowed."""
    document = an_object(value, where)
    known = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
    for key in document:
        if key not in known and not others:
            raise PlanError(f"{where}.{key}: unknown; expected {', '.join(known)}")
    values = {}
    for name, field in known.items():
        if name in document or field.default is MISSING:
            values[name] = entry(document, name, _READERS[str(field.type)], where)
    return kind(**values)


def table(rows: list[Json], columns: Sequence[Whole], form: str, place: Callable[[int], str]) -> NDArray[np.int64]:
    """Return int64 [len(rows), len(columns)] of lists of whole numbers: checked in bulk, then one by one for the fault.

    Raises:
        PlanError: A list has other numbers, or is none; names its `place` by index, and its `form` in words.
    """
    if set(map(type, rows)) <= {list} and set(map(len, rows)) <= {len(columns)}:
        flat = list(chain.from_iterable(rows))
        with suppress(OverflowError):
            if set(map(type, flat)) <= {int}:
                numbers = np.array(flat, dtype=np.int64).reshape(-1, len(columns))
                low, high = [kind.low for kind in columns], [kind.high for kind in columns]
                if ((numbers >= low) & (numbers <= high)).all():
                    return numbers
    for index, row in enumerate(rows):
        if not isinstance(row, list) or len(row) != len(columns):
            refuse(place(index), form, row)
        for column, (kind, value) in enumerate(zip(columns, row, strict=True)):
            kind(value, f"{place(index)}[{column}]")
    raise AssertionError("a table without a fault was refused")


def a_figure(value: Json, where: str) -> float:
    """Return the value, a number of at least 0."""
    if _number(value, where) < 0:
        refuse(where, "a number of at least 0", value)
    return float(value)


_READERS: dict[str, Reader[Any]] = {
    "bool": such(lambda value: isinstance(value, bool), "true or false"),
    "int": such(lambda value: type(value) is int and value >= 0, "a number, whole and not below 0"),
    "float": _number,
    "float | None": lambda value, where: None if value is None else _number(value, where),
    "str": a_text,
    "dict[str, Any]": an_object,
    "tuple[dict[str, Any], ...]": each(an_object),
}
"""Readers by the annotation of a dataclass field."""
