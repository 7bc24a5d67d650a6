"""Sweeps: the time of every algorithm over sizes, hosts or context lengths."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Any

from topocomm.cli.options.sweep_values import Sweep
from topocomm.errors import PlanError
from topocomm.topology.draw.folded_table import folded_table

COLUMNS = 80


@dataclass(frozen=True)
class Row:
    """Times of one value.

    Attributes:
        times_us: By algorithm; None where it does not apply, with the reason in `why`.
    """

    value: int
    times_us: dict[str, float | None]
    why: dict[str, str]


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


def sweep_text(chosen: Sweep, rows: Sequence[Row], columns: int | None = None) -> list[str]:
    """Return the rows as a table in us, with the fastest of each; as several where a terminal has few columns."""
    names = list(rows[0].times_us)
    first = max(len(chosen.over), *(len(str(row.value)) for row in rows))
    table = [[chosen.over.rjust(first), *(name.rjust(10) for name in names), "fastest"]]
    for row in rows:
        known = {name: us for name, us in row.times_us.items() if us is not None}
        best = min(known, key=lambda name: known[name]) if known else "-"
        cells = (("-" if us is None else f"{us:.2f}").rjust(max(len(name), 10)) for name, us in row.times_us.items())
        table.append([str(row.value).rjust(first), *cells, best])
    missing = dict.fromkeys(f"{name}: {why}" for row in rows for name, why in row.why.items())
    return [*folded_table(table, columns), *reasons(missing)]


def reasons(missing: Iterable[str]) -> list[str]:
    """Return why some are missing in a table, each in lines of at most 80 columns."""
    return [
        line for why in missing for line in wrap(f"- {why}", COLUMNS, subsequent_indent="  ", break_on_hyphens=False)
    ]


def sweep_document(chosen: Sweep, rows: Sequence[Row]) -> dict[str, Any]:
    """Return the rows as plain JSON values."""
    return {
        "over": chosen.over,
        "rows": [{"value": row.value, "times_us": row.times_us, "not_possible": row.why} for row in rows],
    }
