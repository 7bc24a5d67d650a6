"""The table as one JSON document with nccl-tests' keys, and as CSV."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from topocomm.bench.facts import Facts
from topocomm.bench.row import Cell, Row
from topocomm.bench.table import average_bus_gb_per_s

SCHEMA = "topocomm.bench/1"


def dump_json(facts: Facts, rows: Sequence[Row], config: dict[str, Any]) -> str:
    """Return the rows as one JSON document; `config` has options and start time."""
    wrong = sum(row.wrong for row in rows)
    document = {
        "schema": SCHEMA,
        "config": config,
        "facts": asdict(facts),
        "results": [_entry(row) for row in rows],
        "out_of_bounds": {"count": wrong, "okay": wrong == 0},
        "average_bus_bandwidth": {"bandwidth": average_bus_gb_per_s(rows), "okay": "unchecked"},
    }
    return json.dumps(document, indent=1) + "\n"


def dump_csv(rows: Sequence[Row]) -> str:
    """Return the rows as CSV, flattened; an empty cell is JSON's null."""
    flat: list[dict[str, Any]] = []
    for row in rows:
        flat.append({})
        for name, value in _entry(row).items():
            if name in ("out_of_place", "in_place"):
                flat[-1] |= {f"{name}_{key}": None if value is None else value[key] for key in CELL_KEYS}
            else:
                flat[-1][name] = value
    text = io.StringIO()
    writer = csv.DictWriter(text, list(flat[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return text.getvalue()


def _entry(row: Row) -> dict[str, Any]:
    p, main = row.problem, row.main.times
    return {
        "size": p.size_bytes,
        "count": p.count,
        "type": p.dtype_name,
        "redop": p.redop,
        "root": p.root,
        "out_of_place": _cell(row.out_of_place),
        "in_place": _cell(row.in_place),
        "implementation": row.name,
        "collective": p.collective,
        "ranks": p.ranks,
        "p50_us": main.percentile_us(50),
        "p99_us": main.percentile_us(99),
        "predicted_us": row.predicted_us,
        "predicted_over_measured": row.predicted_over_measured,
        "algorithm": None if row.plan is None else row.plan.algorithm,
        "rounds": None if row.plan is None else row.plan.rounds,
        "plan_digest": None if row.plan is None else row.plan.digest,
        "transport": row.way,
        "actual_iterations": len(main.us) * main.calls,
    }


CELL_KEYS = ("time", "alg_bw", "bus_bw", "nwrong", "p25_us", "p50_us", "p75_us", "p99_us")


def _cell(cell: Cell | None) -> dict[str, Any] | None:
    if cell is None:
        return None
    percentiles = (cell.times.percentile_us(percent) for percent in (25, 50, 75, 99))
    values = (cell.times.mean_us, cell.alg_gb_per_s, cell.bus_gb_per_s, cell.wrong, *percentiles)
    return dict(zip(CELL_KEYS, values, strict=True))
