"""Sweeps: the time of every algorithm over sizes, hosts or context lengths."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from topocomm.errors import PlanError

MOST_VALUES = 200
"""Values of the longest sweep."""
SWEPT = ("bytes", "hosts", "context")


@dataclass(frozen=True)
class Sweep:
    """What is swept, and its values in order."""

    over: str
    values: tuple[int, ...]


@dataclass(frozen=True)
class Row:
    """Times of one value.

    Attributes:
        times_us: By algorithm; None where it does not apply, with the reason in `why`.
    """

    value: int
    times_us: dict[str, float | None]
    why: dict[str, str]


def parse_count(text: str, option: str) -> int:
    """Parse a whole number with a unit: 128, 64K, 1.5M and 16KiB are binary, 16KB is decimal.

    Raises:
        PlanError: The text is none.
    """
    match = re.fullmatch(r"\s*([0-9]{1,15}(?:\.[0-9]{1,6})?)\s*([KMG]?)(iB?|B)?\s*", text, re.IGNORECASE)
    number = None
    if match is not None:
        thousand = 1000 if match[3] in ("B", "b") else 1024
        number = float(match[1]) * thousand ** " KMG".index(match[2].upper() or " ")
    if number is None or number != int(number):
        raise PlanError(f"{option} {text!r}: expected a whole number such as 128, 64K, 1M or 5.5M")
    return int(number)


def parse_sweep(text: str) -> Sweep:
    """Parse `WHAT=A:B:FACTOR` or `WHAT=A,B,C`; WHAT is bytes, hosts or context.

    Raises:
        PlanError: The text is neither, or has more than MOST_VALUES values.
    """
    over, mark, listed = text.partition("=")
    option = f"--sweep {over}"
    if over not in SWEPT or not mark:
        raise PlanError(
            f"--sweep {text!r}: expected bytes=A:B:FACTOR, hosts=A,B,C or context=A:B:FACTOR, as bytes=1KiB:1GiB:4"
        )
    parts = listed.split(":")
    if len(parts) == 1:
        values = [parse_count(part, option) for part in listed.split(",")]
    elif len(parts) == 3 and parts[2].isascii() and parts[2].isdecimal() and int(parts[2]) > 1:
        value, last = (parse_count(part, option) for part in parts[:2])
        values = []
        while 0 < value <= last and len(values) <= MOST_VALUES:
            values.append(value)
            value *= int(parts[2])
    else:
        raise PlanError(f"{option}={listed}: expected A:B:FACTOR with a factor over 1, or A,B,C")
    if not values or len(values) > MOST_VALUES or min(values) < (0 if over == "bytes" else 1):
        raise PlanError(f"{option}={listed}: expected 1 to {MOST_VALUES} values, ascending from at least 1")
    return Sweep(over, tuple(dict.fromkeys(values)))


def sweep(
    chosen: Sweep,
    algorithms: Sequence[str],
    time_us: Callable[[int, str], float],
    progress: Callable[[str], None] = lambda _: None,
) -> list[Row]:
    """Return a row for every value; what an algorithm cannot do is left out of it, with the reason.

    Args:
        chosen: What is swept.
        algorithms: Their names.
        time_us: Returns the time of a value and an algorithm; raises PlanError where it does not apply.
        progress: Is told in words what comes next.

    Raises:
        PlanError: An algorithm applies to no value; the message says why.
    """
    rows = []
    for number, value in enumerate(chosen.values, start=1):
        times: dict[str, float | None] = {}
        why: dict[str, str] = {}
        for name in algorithms:
            progress(f"{number} of {len(chosen.values)}: {chosen.over} {value}, {name}")
            try:
                times[name] = time_us(value, name)
            except PlanError as error:
                times[name], why[name] = None, str(error)
        rows.append(Row(value, times, why))
    for name in algorithms:
        if all(row.times_us[name] is None for row in rows):
            raise PlanError(rows[0].why[name])
    return rows


def sweep_text(chosen: Sweep, rows: Sequence[Row]) -> list[str]:
    """Return the rows as a table in us, with the fastest of each."""
    names = list(rows[0].times_us)
    widths = [max(len(name), 10) for name in names]
    first = max(len(chosen.over), *(len(str(row.value)) for row in rows))
    lines = [
        " ".join([f"{chosen.over:>{first}}", *(f"{n:>{w}}" for n, w in zip(names, widths, strict=True)), "fastest"])
    ]
    for row in rows:
        known = {name: us for name, us in row.times_us.items() if us is not None}
        best = min(known, key=lambda name: known[name]) if known else "-"
        cells = ["-" if us is None else f"{us:.2f}" for us in row.times_us.values()]
        lines.append(
            " ".join([f"{row.value:>{first}}", *(f"{c:>{w}}" for c, w in zip(cells, widths, strict=True)), best])
        )
    reasons = dict.fromkeys(f"{name}: {why}" for row in rows for name, why in row.why.items())
    return [*lines, *(f"- {reason}" for reason in reasons)]


def sweep_document(chosen: Sweep, rows: Sequence[Row]) -> dict[str, Any]:
    """Return the rows as plain JSON values."""
    return {
        "over": chosen.over,
        "rows": [{"value": row.value, "times_us": row.times_us, "not_possible": row.why} for row in rows],
    }
