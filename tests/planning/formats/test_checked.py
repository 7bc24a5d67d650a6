"""Values of JSON are what they must be, or the path of the first that is not is named."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import pytest

from topocomm import PlanError
from topocomm.planning.formats.checked import Whole, a_record, table


@dataclass(frozen=True)
class Record:
    yes: bool
    count: int
    time_us: float
    rate: float | None
    words: str
    facts: dict[str, Any]
    more: tuple[dict[str, Any], ...]
    last: int = 7


GOOD = {"yes": True, "count": 3, "time_us": 1, "rate": None, "words": "w", "facts": {"a": [1]}, "more": [{}, {"b": 2}]}


def test_a_record_is_read_field_by_field():
    assert a_record(Record, GOOD, "it") == Record(True, 3, 1, None, "w", {"a": [1]}, ({}, {"b": 2}))
    assert a_record(Record, GOOD | {"last": 9, "rate": 0.5}, "it").last == 9
    assert a_record(Record, GOOD | {"else": 1}, "", others=True).count == 3


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("yes", 0, "it.yes: expected true or false, got 0"),
        ("count", -1, "it.count: expected a number, whole and not below 0, got -1"),
        ("count", True, "it.count: expected a number, whole and not below 0, got True"),
        ("time_us", None, "it.time_us: expected a number, got None"),
        ("rate", 1e999, "it.rate: expected a number, got inf"),
        ("rate", -(10**400), "it.rate: expected a number, got -1000"),
        ("words", [], "it.words: expected a string, got []"),
        ("facts", [], "it.facts: expected an object, got []"),
        ("more", {}, "it.more: expected a list, got {}"),
        ("more", [{}, 1], "it.more[1]: expected an object, got 1"),
        ("else", 1, "it.else: unknown; expected yes, count"),
    ],
    ids=str,
)
def test_what_does_not_fit_a_record_is_named(key, value, message):
    with pytest.raises(PlanError, match=f"^{re.escape(message)}"):
        a_record(Record, GOOD | {key: value}, "it")


@pytest.mark.parametrize("row", [[1, 8], [1], [1, 2, 3], [1, True], [1, 2.0], [10**30, 2], [-1, 2], None, "12", {}])
def test_the_first_wrong_row_of_a_table_is_named(row):
    columns = Whole("a rank", 7), Whole("a chunk", 7)
    good = [[index % 8, 2] for index in range(100)]
    assert table(good, columns, "[rank, chunk]", str).tolist() == good
    assert table([], columns, "[rank, chunk]", str).shape == (0, 2)
    with pytest.raises(PlanError, match=r"^row 60(\[[01]\])?: expected "):
        table([*good[:60], row, *good], columns, "[rank, chunk]", lambda index: f"row {index}")
