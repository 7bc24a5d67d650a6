"""`python -m tools.netlab compare`: predictions beside what `measure` measured."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from topocomm.operators.builtin import AFFINE, SUM
from topocomm.planning.collectives import Collective
from topocomm.planning.plan import Plan
from topocomm.planning.planner import every_plan, make_plan
from topocomm.planning.request import layout_of, on_every_endpoint
from topocomm.simulation import simulate_plan
from topocomm.topology.readers.plain.topology_json import from_document

from .namespaces import LabError

DIFFERENT = 1.10
"""Ratio of two times from which on they have an order."""


class Held(NamedTuple):
    """One schedule at one size: what was predicted, and what was measured."""

    part: str
    way: str
    size_bytes: int
    predicted_us: float
    measured_us: float

    @property
    def error(self) -> float:
        """Relative error of the prediction."""
        return abs(self.predicted_us / self.measured_us - 1)


def add_compare(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser("compare", help="predictions of planner and simulator beside measured times")
    parser.add_argument("figures", type=Path, help="JSON that `measure` wrote")
    parser.set_defaults(run=run_compare)


def run_compare(args: argparse.Namespace) -> int:
    """Print every schedule's times and the errors."""
    try:
        document = json.loads(args.figures.read_text())
        if not any(isinstance(part, dict) and part.get("topology") for part in document.values()):
            raise KeyError("topology")
        planned = held(document, lambda part, row: row["planner_us"])
        simulated = held(document, Simulator(document).time_us)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LabError(f"{args.figures}: not what `measure` writes ({type(error).__name__}: {error})") from None
    print(f"by the planner's cost model\n{summary(planned)}\n\nby the simulator\n{summary(simulated)}")
    return 0


class Simulator:
    """Simulated times of the schedules in a document of `measure`, on the topology that was measured with them."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._document = document
        self._plans: dict[tuple[str, int], dict[str, Plan]] = {}

    def time_us(self, part: str, row: dict[str, Any]) -> float | None:
        """Return the simulated time of a row's schedule; None for other libraries' algorithms."""
        if row["planner_us"] is None:
            return None
        topology = from_document(self._document[part]["topology"])
        key = part, row["bytes"]
        if key not in self._plans:
            operator = {op.name: op for op in (SUM, AFFINE)}[row["operator"]]
            collective = Collective(row["collective"], len(topology.endpoints))
            request = on_every_endpoint(topology, collective, operator, layout_of(operator, row["bytes"]))
            plans = [*every_plan(topology, request), make_plan(topology, request)]
            self._plans[key] = {f"topocomm {plan.algorithm}": plan for plan in plans}
        return simulate_plan(self._plans[key][row["way"]], topology).total_us


def held(document: dict[str, Any], predict: Callable[[str, dict[str, Any]], float | None]) -> list[Held]:
    """Return all rows of a document that have a prediction."""
    found = []
    for part, measured in document.items():
        for row in measured["rows"] if isinstance(measured, dict) else ():
            predicted_us = predict(part, row)
            if predicted_us is not None:
                found.append(Held(part, row["way"], row["bytes"], predicted_us, row["median_us"]))
    return found


def order_share(rows: list[Held]) -> tuple[int, int]:
    """Return in how many pairs of one part and size that differ by over 10 % the order is right, and the pairs."""
    right = count = 0
    for a, b in combinations(rows, 2):
        alike = a.part == b.part and a.size_bytes == b.size_bytes
        if alike and max(a.measured_us, b.measured_us) > DIFFERENT * min(a.measured_us, b.measured_us):
            count += 1
            right += (a.predicted_us < b.predicted_us) == (a.measured_us < b.measured_us)
    return right, count


def summary(rows: list[Held]) -> str:
    """Return a table of all rows, the median error, and how often the order is right."""
    if not rows:
        return "no schedule of ours in these figures"
    lines = [f"{'part':15} {'schedule':32} {'bytes':>10} {'predicted ms':>13} {'measured ms':>12} {'error':>7}"]
    for row in rows:
        times = f"{row.predicted_us / 1e3:13.2f} {row.measured_us / 1e3:12.2f}"
        lines.append(f"{row.part:15} {row.way:32} {row.size_bytes:10,} {times} {row.error:7.1%}")
    right, count = order_share(rows)
    lines.append(f"median error {median(row.error for row in rows):.1%} of {len(rows)}")
    if count:
        lines.append(f"order right in {right} of {count} pairs that differ by more than 10 % ({right / count:.0%})")
    return "\n".join(lines)
