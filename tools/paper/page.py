"""The page of results: text written by hand, and between marks what the program writes."""

from __future__ import annotations

from collections.abc import Sequence

from topocomm import TopocommError


def marks(name: str) -> tuple[str, str]:
    """Return the marks around what the program writes of a figure."""
    return f"<!-- {name} begin -->", f"<!-- {name} end -->"


def placed(page: str, name: str, lines: Sequence[str]) -> str:
    """Return the page with the lines of a figure between its marks.

    Raises:
        TopocommError: A mark is missing, there twice, or the end comes first.
    """
    begin, end = marks(name)
    before, _, rest = page.partition(begin)
    after = rest.partition(end)[2]
    if page.count(begin) != 1 or page.count(end) != 1 or end in before:
        raise TopocommError(f"page: expected {begin} and, after it, {end}, once each")
    body = "\n".join(lines)
    return f"{before}{begin}\n\n{body}\n\n{end}{after}"
