"""`topocomm simulate --model`: a decode step by several ways to share the context, side by side."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

from topocomm.cli.command_ranks import speaks
from topocomm.cli.options.arguments import of, parse_ranks
from topocomm.cli.options.sources import read_job
from topocomm.cli.terminal.output import write_result, write_text
from topocomm.cli.terminal.progress_line import ProgressLine
from topocomm.errors import PlanError
from topocomm.simulation.decode import DEVICES, METHODS, MODELS, DecodeStep, simulate_step
from topocomm.simulation.runs import PLANNED
from topocomm.simulation.sweeps import parse_count, parse_sweep, sweep, sweep_document, sweep_text
from topocomm.simulation.timeline_words import timeline_document, timeline_text
from topocomm.simulation.trace_events import trace_json
from topocomm.topology.catalog.systems import catalog
from topocomm.topology.draw.names import plural
from topocomm.topology.links import GROUP_LAUNCH_US
from topocomm.topology.model import Topology

SCHEMA = "topocomm.simulation-step/1"
OF_A_COLLECTIVE = ("plan", "collective", "bytes", "operator", "objective", "root", "compare", "ports", "port_model")
"""Options that say what a collective is; a step says it itself."""
Machine = Callable[[argparse.Namespace, Topology], Topology]


def add_step(parser: argparse.ArgumentParser) -> None:
    """Add the options of a decode step."""
    step = parser.add_argument_group("a decode step of a model, in place of a collective")
    step.add_argument("--model", type=of(MODELS), metavar="NAME", help=f"one of {', '.join(MODELS)}")
    step.add_argument("--context", metavar="N", help="tokens of each sequence before the new one, as 128K or 1M")
    step.add_argument(
        "--methods", type=of(METHODS), metavar="A,B,...", help=f"ways to share it (all): {', '.join(METHODS)}"
    )
    step.add_argument("--batch", type=int, default=1, metavar="N", help="sequences (1)")
    step.add_argument(
        "--device", type=of(DEVICES), metavar="NAME", help=f"what holds a rank, one of {', '.join(DEVICES)}"
    )
    step.add_argument("--weights", choices=("sharded", "replicated"), default="sharded", help="default sharded")
    step.add_argument("--efficiency", type=float, default=1.0, metavar="X", help="share of data sheets reached (1)")


def run_step(args: argparse.Namespace, machine: Machine) -> int:
    """Simulate steps, print them, and return the exit status."""
    methods = _methods(args)
    if args.sweep is not None:
        return _sweep(args, methods, machine)
    topology = machine(args, read_job(args))
    if not speaks():
        return 0
    if args.context is None:
        raise PlanError("--context is missing: give the tokens of each sequence before the new one, as 128K or 1M")
    context = parse_count(args.context, "--context")
    steps, missing = [], []
    with ProgressLine("simulating", steps=len(methods)) as progress:
        for method in methods:
            progress(method)
            try:
                steps.append(_step(args, topology, method, context))
            except PlanError as error:
                if len(methods) == 1 or "method" not in str(error):
                    raise
                missing.append(str(error))
    if args.trace is not None:
        if len(steps) != 1:
            raise PlanError("--trace goes with one method: name it with --methods")
        write_result(trace_json(steps[0].timeline), args.trace)
    if args.format == "json":
        write_result(json.dumps(_document(steps, topology)) + "\n", None)
        return 0
    write_text("\n".join([*_table(steps, topology), *(f"- {why}" for why in missing)]) + "\n")
    return 0


def _methods(args: argparse.Namespace) -> list[str]:
    """The methods asked for; what goes with collectives alone is turned away."""
    for option in OF_A_COLLECTIVE:
        if getattr(args, option) is not None:
            raise PlanError(f"--{option.replace('_', '-')} does not go with --model: it is for one collective")
    names = list(METHODS) if args.methods is None else [name.strip() for name in args.methods.split(",")]
    unknown = [name for name in names if name not in METHODS]
    if unknown:
        raise PlanError(f"--methods {args.methods!r}: {unknown[0]!r}: expected names of {', '.join(METHODS)}")
    return list(dict.fromkeys(names))


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


def _sweep(args: argparse.Namespace, methods: list[str], machine: Machine) -> int:
    chosen = parse_sweep(args.sweep)
    if chosen.over == "bytes" or args.trace is not None:
        raise PlanError("--model goes with --sweep context=... or hosts=..., without --trace")
    if (chosen.over == "context") == (args.context is not None):
        words = "is missing" if args.context is None else "does not go with --sweep context=..."
        raise PlanError(f"--context {words}")
    if chosen.over == "hosts" and (args.system is None or args.hosts is not None):
        raise PlanError("--sweep hosts=... goes with --system NAME, without --hosts")
    whole = None if chosen.over == "hosts" else machine(args, read_job(args))
    if not speaks():
        return 0

    def time_us(value: int, method: str) -> float:
        if whole is not None:
            return _step(args, whole, method, value).total_us
        here = machine(args, catalog(args.system, hosts=value))
        return _step(args, here, method, parse_count(args.context, "--context")).total_us

    with ProgressLine("simulating", steps=len(methods) * len(chosen.values)) as progress:
        rows = sweep(chosen, methods, time_us, progress)
    where = args.system if whole is None else whole.name
    if args.format == "json":
        document = {"schema": SCHEMA, "topology": where, "model": args.model, "sweep": sweep_document(chosen, rows)}
        write_result(json.dumps(document) + "\n", None)
        return 0
    head = f"decode step of {args.model} on {where}, us"
    write_text("\n".join([head, *sweep_text(chosen, rows)]) + "\n")
    return 0


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
