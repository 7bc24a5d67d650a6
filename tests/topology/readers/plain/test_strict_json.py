"""Numbers that Python reads and JSON has none of are refused with their path."""

import json

import pytest

from topocomm.topology.readers.plain.strict_json import loads


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("NaN", "NaN is no JSON number"),
        ('{"a": {"b": [0, {"c d": -Infinity, "e": NaN}]}}', "-Infinity is no JSON number (a.b[1].c d)"),
        ("[[1], [2, NaN], Infinity]", "NaN is no JSON number ([1][1])"),
        ('{"a": NaN,', "NaN is no JSON number"),
        ('{"NaN": "NaN", "b": NaN}', "NaN is no JSON number (b)"),
    ],
)
def test_the_first_is_named(text, message):
    with pytest.raises(ValueError, match="is no JSON number") as error:
        loads(text)
    assert str(error.value) == message


def test_json_is_read():
    assert loads('{"a": [1, 2.5, "NaN", null]}') == {"a": [1, 2.5, "NaN", None]}
    with pytest.raises(json.JSONDecodeError):
        loads("{")
