"""Lines of values by their path, also where an object lacks the key."""

import json

import pytest

from topocomm.topology.readers.plain.json_line import line_of

TEXT = """{
 "name": "a \\"[{,}]\\" b",
 "links": [
  {"src": "a",
   "gb_per_s": 1.5, "next": [1, [2,
   3]]},
  {"src": "b", "gb_per_s":
   0}
 ],
 "facts": {}
}
"""


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("name", 2),
        ("links", 3),
        ("links[0]", 4),
        ("links[0].gb_per_s", 5),
        ("links[0].next[1][1]", 6),
        ("links[1].src", 7),
        ("links[1].gb_per_s", 8),
        ("links[1].lanes", 7),
        ("facts.more", 10),
        ("missing", 1),
        ("", 1),
    ],
)
def test_the_line_of_a_value(path, line):
    assert line_of(TEXT, path) == line
    assert line_of("\ufeff\n" + TEXT, path) == line + 1


def test_every_line_of_a_written_list():
    values = list(range(20))
    text = json.dumps({"values": values}, indent=1)
    assert [line_of(text, f"values[{value}]") for value in values] == list(range(3, 23))
