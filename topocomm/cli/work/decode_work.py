"""What `topocomm simulate --model` prints: a decode step by several ways to share the context, side by side."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from topocomm.cli.options.arguments import parse_ranks
from topocomm.cli.terminal.progress_line import ProgressLine
from topocomm.cli.work.simulated_output import write_simulated, write_sweep
from topocomm.cli.work.sweeps import reasons
from topocomm.errors import PlanError
from topocomm.simulation.decode import DecodeStep, simulate_step
from topocomm.simulation.runs import PLANNED
from topocomm.simulation.timeline_words import timeline_document, timeline_text
from topocomm.topology.draw.names import plural
from topocomm.topology.links import GROUP_LAUNCH_US
from topocomm.topology.model import Topology

SCHEMA = "topocomm.simulation-step/1"
Machine = Callable[[argparse.Namespace, int], Topology]
"""Returns the system with so many hosts."""


def write_step(args: argparse.Namespace, topology: Topology | None, machine: Machine) -> None:
    """Simulate steps on the machine, or for a sweep over hosts on many, and print them; the options are checked."""
    if args.sweep is not None:
        _sweep(args, topology, machine)
        return
    assert topology is not None  # a sweep alone has none
    steps, missing = [], []
    with ProgressLine("simulating", steps=len(args.names)) as progress:
        for method in args.names:
            progress(method)
            try:
                steps.append(_step(args, topology, method, args.context))
            except PlanError as error:
                if len(args.names) == 1 or "method" not in str(error):
                    raise
                missing.append(str(error))
    lines = [*_table(steps, topology), *reasons(missing)]
    write_simulated(args, steps[0].timeline, lines, lambda: _document(steps, topology))


def _step(args: argparse.Namespace, topology: Topology, method: str, context: int) -> DecodeStep:
    return simulate_step(
        topology,
        args.model,
        context=context,
        method=method,
        batch=args.batch,
        ranks=parse_ranks(args.ranks, topology),
        device=args.device,
        weights=args.weights,
        collectives=args.algorithm or PLANNED,
        launch_us=GROUP_LAUNCH_US if args.launch_us is None else args.launch_us,
        efficiency=args.efficiency,
    )


def _sweep(args: argparse.Namespace, own: Topology | None, machine: Machine) -> None:
    def time_us(value: int, method: str) -> float:
        if own is not None:
            return _step(args, own, method, value).total_us
        return _step(args, machine(args, value), method, args.context).total_us

    where = args.system if own is None else own.name
    document = {"schema": SCHEMA, "topology": where, "model": args.model}
    write_sweep(args, f"decode step of {args.model} on {where}, us", time_us, document)


def _table(steps: list[DecodeStep], topology: Topology) -> list[str]:
    first, best_us = steps[0], min(step.total_us for step in steps)
    kv_gb = first.kv_bytes / 1e9
    lines = [
        f"decode step of {first.model.name}, {plural(len(first.ranks), 'rank')} on {topology.name}",
        f"context {first.context}, {plural(first.batch, 'sequence')}, {kv_gb:.2f} GB of keys and values a rank",
        f"{'method':16} {'ms':>10} {'x':>8} {'tokens/s':>9} {'us a layer':>11} {'not computing':>13}",
    ]
    lines += [
        f"{step.method:16} {step.total_us / 1e3:10.3f} {step.total_us / best_us:8.2f} {step.tokens_per_s:9.1f} "
        f"{step.layer_us:11.2f} {step.communication_share:13.1%}"
        for step in sorted(steps, key=lambda step: step.total_us)
    ]
    if len(steps) == 1:
        lines += [f"of {plural(len(first.ends_us), 'layer')} and the head:", *timeline_text(first.timeline, first.path)]
    return lines


def _document(steps: list[DecodeStep], topology: Topology) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "topology": topology.name,
        "topology_digest": topology.digest,
        "steps": [
            {
                "model": step.model.name,
                "method": step.method,
                "context": step.context,
                "batch": step.batch,
                "ranks": list(step.ranks),
                "total_us": step.total_us,
                "layer_us": step.layer_us,
                "head_us": step.head_us,
                "tokens_per_s": step.tokens_per_s,
                "communication_share": step.communication_share,
                "kv_bytes": step.kv_bytes,
                "simulated": timeline_document(step.timeline, step.path),
            }
            for step in steps
        ],
    }
