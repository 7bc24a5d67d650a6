"""In which line of a JSON text a value stands, so that errors about it can be looked up in an editor."""

from __future__ import annotations

import json
import re

_STEP = re.compile(r"\[(\d+)\]|\.?([^.\[\]]+)")
_BLANK = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()


def line_of(text: str, path: str) -> int:
    """Return the line, from 1, of the value at a path such as `links[3].gb_per_s` of valid JSON.

    Where an object lacks the key, it is the line on which the object begins.
    """
    at = _after_blanks(text, 1 if text.startswith("\ufeff") else 0)
    for index, key in _STEP.findall(path):
        found = _item(text, at, int(index)) if index else _member(text, at, key)
        if found is None:
            break
        at = found
    return text.count("\n", 0, at) + 1


def _item(text: str, at: int, index: int) -> int:
    """Return where the item of the list that begins at `at` begins."""
    for _ in range(index):
        at = _after_blanks(text, _DECODER.raw_decode(text, _after_blanks(text, at + 1))[1])
    return _after_blanks(text, at + 1)


def _member(text: str, at: int, key: str) -> int | None:
    """Return where the value of a key of the object that begins at `at` begins; None where there is none."""
    while True:
        at = _after_blanks(text, at + 1)
        if text[at] == "}":
            return None
        name, colon = _DECODER.raw_decode(text, at)
        value = _after_blanks(text, _after_blanks(text, colon) + 1)
        if name == key:
            return value
        at = _after_blanks(text, _DECODER.raw_decode(text, value)[1])
        if text[at] == "}":
            return None


def _after_blanks(text: str, at: int) -> int:
    found = _BLANK.match(text, at)
    return found.end() if found else at
