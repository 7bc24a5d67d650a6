"""`--sweep WHAT=VALUES`: what is swept, and its values."""

from __future__ import annotations

from typing import NamedTuple

from topocomm.cli.options.arguments import parse_count, parse_range
from topocomm.errors import PlanError

MOST_VALUES = 200
"""Values of the longest sweep."""
SWEPT = ("bytes", "hosts", "context")


class Sweep(NamedTuple):
    """What is swept, and its values in order."""

    over: str
    values: tuple[int, ...]


def parse_sweep(text: str) -> Sweep:
    """Parse `WHAT=FROM:TO:FACTOR` or `WHAT=A,B,C`; WHAT is bytes, hosts or context.

    Raises:
        PlanError: The text is neither, or has more than MOST_VALUES values.
    """
    over, mark, listed = text.partition("=")
    option = f"--sweep {over}"
    if over not in SWEPT or not mark:
        raise PlanError(
            f"--sweep {text!r}: expected bytes=A:B:FACTOR, hosts=A,B,C or context=A:B:FACTOR, as bytes=1KiB:1GiB:4"
        )
    if ":" in listed:
        values = parse_range(listed, option, "FROM:TO:FACTOR with a factor over 1, or A,B,C", parse_count)
    else:
        values = tuple(parse_count(part, option) for part in listed.split(","))
    if len(values) > MOST_VALUES or min(values) < (0 if over == "bytes" else 1):
        raise PlanError(f"{option}={listed}: expected 1 to {MOST_VALUES} values, ascending from at least 1")
    return Sweep(over, tuple(dict.fromkeys(values)))
