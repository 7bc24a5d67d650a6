"""How simulations are printed: text or one JSON document, a trace beside it, a sweep with its progress."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from typing import Any

from topocomm.cli.terminal.output import terminal_columns, write_result, write_text
from topocomm.cli.terminal.progress_line import ProgressLine
from topocomm.cli.work.sweeps import sweep, sweep_document, sweep_text
from topocomm.planning.cost.timeline import Timeline
from topocomm.simulation.trace_events import trace_json


def write_simulated(
    args: argparse.Namespace, timeline: Timeline, lines: Sequence[str], document: Callable[[], dict[str, Any]]
) -> None:
    """Write the trace of a timeline to --trace, where that is given, and print the lines, or the document."""
    if args.trace is not None:
        write_result(trace_json(timeline), args.trace)
    if args.format == "json":
        write_result(json.dumps(document()) + "\n", None)
    else:
        write_text("\n".join(lines) + "\n")


def write_sweep(
    args: argparse.Namespace, title: str, time_us: Callable[[int, str], float], document: dict[str, Any]
) -> None:
    """Sweep over --sweep and the names of algorithms, and print the rows below a title, or the document with them.

    Args:
        args: The options, checked.
        title: The first line of the text.
        time_us: Returns the time of a value and an algorithm; raises PlanError where it does not apply.
        document: The other fields of the JSON document.

    Raises:
        PlanError: An algorithm applies to no value.
    """
    with ProgressLine("simulating", steps=len(args.names) * len(args.sweep.values)) as progress:
        rows = sweep(args.sweep, args.names, time_us, progress)
    if args.format == "json":
        write_result(json.dumps(document | {"sweep": sweep_document(args.sweep, rows)}) + "\n", None)
    else:
        write_text("\n".join([title, *sweep_text(args.sweep, rows, terminal_columns())]) + "\n")
