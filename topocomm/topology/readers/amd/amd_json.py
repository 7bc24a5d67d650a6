"""The JSON document in what an AMD tool printed: warnings of the tool may stand above it, a prompt below."""

from __future__ import annotations

import json
import re
from typing import Any

from topocomm.topology.readers.amd.amd_tables import fail
from topocomm.topology.readers.plain import strict_json

_START = re.compile(r"^[ \t]*([\[{])", re.MULTILINE)
_STOP = re.compile(r"([\]}])[ \t\r]*$", re.MULTILINE)
_TOPOLOGY = re.compile(r'"(?:links?|link_\w+|weight|hops|xgmi_metric|\(Topology\)[^"]{0,100})"')
_ELIDED = re.compile(r"^[ \t]*(?:\.\.\.|…),?[ \t]*$", re.MULTILINE)


def starts_with(text: str, brackets: str) -> bool:
    """True if a line of the text starts a document with one of the brackets."""
    return _start(text, brackets) is not None


def document_in(text: str, name: str, brackets: str = "[{") -> Any:
    """The document that starts on the first line with one of the brackets.

    Raises:
        TopologyError: No JSON, or cut short, or a sample with lines left out; names line and column.
    """
    start = _start(text, brackets) or 0
    stop = max((found.start(1) + 1 for found in _STOP.finditer(text, start)), default=len(text))
    body = "\n" * text.count("\n", 0, start) + text[start : max(stop, start)]
    try:
        return strict_json.loads(body)
    except json.JSONDecodeError as error:
        if error.msg == "Extra data" and _TOPOLOGY.search(body, error.pos) is None:
            return strict_json.loads(body[: error.pos])  # another command's document stands below
        elided = _ELIDED.search(body)
        if elided is not None:
            line = body.count("\n", 0, elided.end()) + 1
            fail(
                f"{name}:{error.lineno}",
                f"not JSON at column {error.colno}, and lines were left out (line {line}: "
                "'...'): a sample of a manual; give the whole output of the tool",
            )
        hint = "; it ends too early" if error.pos >= len(body.rstrip()) else ""
        fail(f"{name}:{error.lineno}", f"not JSON: {error.msg} at column {error.colno}{hint}; give the whole output")
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits, thousands of brackets
        fail(name, f"not usable JSON: {error}")


def _start(text: str, brackets: str) -> int | None:
    for found in _START.finditer(text):
        # A line such as `[user@host ~]$` is a prompt, `[0m` an escape; a document goes on with another value or ends.
        if found.group(1) in brackets and re.match(
            r"[\[{]\s*(?:[\[{\"\]}.…]|\Z)", text[found.start(1) : found.end() + 200]
        ):
            return found.start(1)
    return None
