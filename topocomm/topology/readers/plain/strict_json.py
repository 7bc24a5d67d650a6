"""JSON without Python's extensions: NaN and Infinity are refused, with their path in the document."""

from __future__ import annotations

import json
from typing import Any, NoReturn


def loads(text: str) -> Any:
    """Return the document in a text.

    Raises:
        ValueError: It is no JSON (`json.JSONDecodeError` where that has a line and a column).
        RecursionError: Lists and objects are nested too deep.
    """

    def refuse(name: str) -> NoReturn:
        raise LookupError(name)

    try:
        return json.loads(text, parse_constant=refuse)
    except LookupError as constant:
        raise ValueError(f"{constant} is no JSON number{_place(text)}") from None


def _place(text: str) -> str:
    """Return the path of the first such number, as ` (links[3].gb_per_s)`; empty where the rest is no JSON either."""
    mark = object()
    try:
        document = json.loads(text, parse_constant=lambda name: mark)
    except (ValueError, RecursionError):
        return ""
    left: list[tuple[str, Any]] = [("", document)]
    while left:
        path, value = left.pop()
        if value is mark:
            return f" ({path})" if path else ""
        if isinstance(value, dict):
            left += [(f"{path}.{key}".lstrip("."), item) for key, item in reversed(value.items())]
        elif isinstance(value, list):
            left += [(f"{path}[{index}]", item) for index, item in reversed(list(enumerate(value)))]
    return ""
