"""`topocomm simulate`: what a plan, a library's algorithm or a decode step takes on a machine that is not there."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from topocomm.cli.command_ranks import speaks
from topocomm.cli.options.arguments import add_nccl_sizes, nccl_sizes, of, parse_bytes, parse_ranks, take_one_size
from topocomm.cli.options.sources import add_sources, read_job
from topocomm.cli.simulate_decode import add_step, run_step
from topocomm.cli.terminal.output import write_result, write_text
from topocomm.cli.terminal.progress_line import ProgressLine
from topocomm.errors import PlanError, TopologyError
from topocomm.operators.find import find_operator
from topocomm.planning.collectives import COLLECTIVES
from topocomm.planning.plan import OBJECTIVES, PORT_MODELS, Plan
from topocomm.planning.proof.verify import verify
from topocomm.planning.routing.paths import PathFinder
from topocomm.simulation.protocols import TRANSPORTS, transport
from topocomm.simulation.runs import PLANNED, Rules, Run, algorithms, simulate_collective, simulate_plan
from topocomm.simulation.sweeps import parse_sweep, sweep, sweep_document, sweep_text
from topocomm.simulation.timeline_words import timeline_document, timeline_text
from topocomm.simulation.trace_events import trace_json
from topocomm.simulation.what_if import with_rates
from topocomm.topology.catalog.systems import catalog
from topocomm.topology.draw.names import plural
from topocomm.topology.merge.degradation import without
from topocomm.topology.model import Topology

SCHEMA = "topocomm.simulation/1"
OF_A_PLAN = ("bytes", "collective", "operator", "objective", "ranks", "root", "algorithm", "compare", "sweep")
"""Options that a saved plan answers, or that do not go with one."""


OF_PLANNED = ("operator", "objective", "root", "ports", "port_model", "launch_us", "fold_gb_per_s", "protocols")
"""Options that only planned schedules heed."""


def add_parser(subparsers: Any) -> None:
    """Add the command to the parser of `topocomm`."""
    parser = subparsers.add_parser(
        "simulate",
        description="Simulate a collective message by message: what it takes, what limits it, what its links carry.",
    )
    add_sources(parser)
    parser.add_argument("--plan", metavar="FILE", help="simulate this saved plan instead of making one")
    parser.add_argument("--collective", choices=COLLECTIVES, help="default allreduce")
    parser.add_argument("--bytes", metavar="N", help="bytes of one rank's value, as of `topocomm plan` (64KiB)")
    parser.add_argument("--operator", metavar="NAME", help="of planned schedules, default sum")
    parser.add_argument("--objective", choices=OBJECTIVES, help="of planned schedules, default auto")
    parser.add_argument("--ranks", metavar="N|GPU0,GPU2,...", help="the first N endpoints, or these, in rank order")
    parser.add_argument("--root", type=int, metavar="R", help="root of reduce, broadcast, gather or scatter (0)")
    names = algorithms()
    words = f"default {PLANNED}; or {', '.join(names[1:])}"
    parser.add_argument("--algorithm", type=of(names), metavar="NAME", help=words)
    parser.add_argument("--compare", type=of(names), metavar="A,B,...", help="several algorithms in a table, by name")
    parser.add_argument(
        "--sweep",
        metavar="WHAT=VALUES",
        help="a table of times: bytes=1KiB:1GiB:4, hosts=1,2,4,8 (with --system), context=32K:1M:2 (with --model)",
    )
    add_nccl_sizes(parser, "--sweep bytes=B:E:F")
    rules = parser.add_argument_group("what messages cost")
    rules.add_argument("--ports", type=int, metavar="K", help="most messages of an endpoint at once (default: any)")
    rules.add_argument("--port-model", choices=PORT_MODELS, help="of planned schedules, default loggp")
    rules.add_argument("--launch-us", type=float, metavar="US", help="what a planned round costs to start")
    rules.add_argument("--fold-gb-per-s", type=float, metavar="GBPS", help="bytes an endpoint reads and writes to fold")
    rules.add_argument("--protocols", choices=tuple(TRANSPORTS), help="of planned messages, default none")
    add_step(parser)
    parser.add_argument("--without", action="append", metavar="LINK", help="as if it were down, as of `topocomm plan`")
    parser.add_argument(
        "--what-if",
        action="append",
        metavar="LINK=GBPS",
        help="as if this link had this rate: GPU3-NIC3=25, 'GPU0->GPU1=10', rail3=100, network=100; repeatable",
    )
    parser.add_argument("--trace", metavar="FILE", help="write a trace for ui.perfetto.dev or chrome://tracing")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="default text")


def run(args: argparse.Namespace) -> int:
    """Simulate, print, and return the exit status."""
    take_one_size(args)
    given = args.sweep and args.sweep.partition("=")[2]
    if (sizes := nccl_sizes(args, "--sweep", given)) is not None and args.sweep is None:
        args.sweep = f"bytes={sizes}"
    if args.algorithm and args.compare:
        raise PlanError("--algorithm does not go with --compare: name it among those that are compared")
    if args.model is not None:
        return run_step(args, _machine)
    if args.sweep is not None:
        return _sweep(args)
    whole = read_job(args)
    if not speaks():
        return 0
    topology = _machine(args, whole)
    with ProgressLine("simulating", steps=len(_names(args))) as progress:
        chosen, missing = _saved_run(args, whole, topology) if args.plan else _runs(args, topology, progress)
    if args.trace is not None:
        if args.compare:
            raise PlanError("--trace does not go with --compare: a trace shows one algorithm, name it with --algorithm")
        write_result(trace_json(chosen[0].timeline), args.trace)
    if args.format == "json":
        write_result(json.dumps(_document(chosen, topology)) + "\n", None)
        return 0
    lines = _table(chosen, missing, topology) if args.compare else _single(chosen[0], topology)
    write_text("\n".join(lines) + "\n")
    return 0


def _machine(args: argparse.Namespace, whole: Topology) -> Topology:
    """The topology with what is down and what is changed."""
    topology = without(whole, args.without) if args.without else whole
    try:
        topology = with_rates(topology, args.what_if or ())
        PathFinder(topology)
    except PlanError as error:  # an impossible figure of a link: say which file it is from
        where = ", ".join(args.input or ())
        raise TopologyError(f"{where}: {error}" if where else str(error)) from None
    return topology


def _runs(args: argparse.Namespace, topology: Topology, progress: Callable[[str], None]) -> tuple[list[Run], list[str]]:
    """The runs of all algorithms asked for; why others of several are not possible here."""
    chosen, missing, names = [], [], _names(args)
    _refuse_unused(args, names)
    for name in names:
        progress(name)
        try:
            chosen.append(_run(args, topology, name))
        except PlanError as error:
            if len(names) == 1 or name not in algorithms():
                raise
            missing.append(f"{name}: {error}")
    if not chosen:
        raise PlanError(missing[0])
    return chosen, missing


def _refuse_unused(args: argparse.Namespace, names: Sequence[str]) -> None:
    """Turn away what planned schedules alone heed where none is simulated."""
    for option in OF_PLANNED:
        if PLANNED not in names and getattr(args, option) is not None:
            raise PlanError(
                f"--{option.replace('_', '-')} goes with planned schedules; {', '.join(names)} follow models of "
                f"their own: add {PLANNED} to --compare, or leave it out"
            )


def _names(args: argparse.Namespace) -> list[str]:
    if args.compare is None:
        return [args.algorithm or PLANNED]
    names = [name.strip() for name in args.compare.split(",") if name.strip()]
    if not names:
        raise PlanError(f"--compare {args.compare!r}: expected names of {', '.join(algorithms())}")
    return list(dict.fromkeys(names))


def _rules(args: argparse.Namespace) -> Rules:
    for option, least in (("launch_us", 0.0), ("fold_gb_per_s", 1e-9), ("ports", 1)):
        value = getattr(args, option)
        if value is not None and not least <= value < float("inf"):
            raise PlanError(f"--{option.replace('_', '-')} {value}: expected a number of at least {least:g}")
    return Rules(
        ports=args.ports,
        port_model=args.port_model or "loggp",
        launch_us=args.launch_us,
        fold_gb_per_s=args.fold_gb_per_s,
        transport=None if args.protocols is None else transport(args.protocols),
        as_called=any(name.startswith("nccl") for name in _names(args)),
    )


def _run(args: argparse.Namespace, topology: Topology, algorithm: str, payload_bytes: int | None = None) -> Run:
    if payload_bytes is None and args.bytes is None:
        raise PlanError("--bytes is missing: give the bytes of one rank's value (16512, 64KiB; 0 for latency only)")
    return simulate_collective(
        topology,
        algorithm,
        args.collective or "allreduce",
        payload_bytes=parse_bytes(args.bytes) if payload_bytes is None else payload_bytes,
        operator=find_operator(args.operator or "sum"),
        objective=args.objective or "auto",
        ranks=parse_ranks(args.ranks, topology),
        root=args.root or 0,
        rules=_rules(args),
    )


def _saved_run(args: argparse.Namespace, whole: Topology, topology: Topology) -> tuple[list[Run], list[str]]:
    for option in OF_A_PLAN:
        if getattr(args, option) is not None:
            raise PlanError(f"--{option} does not go with --plan FILE: the file says what its plan is for")
    saved = Plan.load(args.plan)
    if saved.topology_digest != whole.digest:
        raise PlanError(
            f"{args.plan}: made for another topology (digest {saved.topology_digest[:12]}; {whole.name!r} has "
            f"{whole.digest[:12]}); name that one with --input or --system, or plan again"
        )
    paths = PathFinder(topology)
    try:
        verify(saved.schedule, saved.collective, endpoints=saved.ranks, paths=paths)
    except PlanError as error:
        raise PlanError(f"{args.plan}: {error}") from None
    rules = _rules(args)
    rules = replace(
        rules,
        port_model=args.port_model or saved.port_model,
        launch_us=saved.launch_us if args.launch_us is None else args.launch_us,
    )
    return [simulate_plan(saved, paths, rules)], []


def _sweep(args: argparse.Namespace) -> int:
    chosen = parse_sweep(args.sweep)
    if chosen.over == "context":
        raise PlanError("--sweep context=... goes with --model NAME")
    if args.plan or args.trace:
        raise PlanError("--sweep does not go with --plan or --trace: a sweep makes a plan for every value")
    if chosen.over == "bytes" and args.bytes is not None:
        raise PlanError("--bytes does not go with --sweep bytes=...")
    if chosen.over == "hosts" and (args.system is None or args.hosts is not None):
        raise PlanError("--sweep hosts=... goes with --system NAME, without --hosts")
    machine = None if chosen.over == "hosts" else _machine(args, read_job(args))
    if not speaks():
        return 0
    time_us = _timer(args, chosen.over, machine)
    names = _names(args)
    _refuse_unused(args, names)
    with ProgressLine("simulating", steps=len(names) * len(chosen.values)) as progress:
        rows = sweep(chosen, names, time_us, progress)
    if args.format == "json":
        document = {"schema": SCHEMA, "topology": None if machine is None else machine.name, "system": args.system}
        write_result(json.dumps(document | {"sweep": sweep_document(chosen, rows)}) + "\n", None)
        return 0
    where = args.system if machine is None else machine.name
    size = "" if args.bytes is None else f", {parse_bytes(args.bytes)} B"
    head = f"{args.collective or 'allreduce'}{size} on {where}, us"
    write_text("\n".join([head, *sweep_text(chosen, rows)]) + "\n")
    return 0


def _timer(args: argparse.Namespace, over: str, machine: Topology | None) -> Callable[[int, str], float]:
    """Return the function that gives the time of a value and an algorithm."""
    known: dict[int, Topology] = {}

    def time_us(value: int, algorithm: str) -> float:
        if machine is not None:
            return _run(args, machine, algorithm, value).total_us
        if value not in known:
            known.clear()  # machines of thousands of hosts are large
            known[value] = _machine(args, catalog(args.system, hosts=value))
        return _run(args, known[value], algorithm).total_us

    return time_us


def _single(chosen: Run, topology: Topology) -> list[str]:
    timeline = chosen.timeline
    detail = f" ({chosen.detail})" if chosen.detail != chosen.algorithm else ""
    return [
        f"{chosen.collective}, {chosen.payload_bytes} B, {plural(len(chosen.ranks), 'rank')} on {topology.name}",
        f"{chosen.algorithm}{detail}: {chosen.total_us:.2f} us, {chosen.gb_per_s:.2f} GB/s, "
        f"{plural(timeline.work.messages, 'message')}, {timeline.work.sent_bytes} B sent",
        *([] if chosen.predicted_us is None else [f"the plan predicts {chosen.predicted_us:.2f} us of its schedule"]),
        f"simulated {timeline.events:,} events in {timeline.wall_s:.2f} s, {timeline.events_per_s:,.0f} a second",
        *timeline_text(timeline),
    ]


def _table(chosen: Sequence[Run], missing: Sequence[str], topology: Topology) -> list[str]:
    first, width = chosen[0], max(len("algorithm"), *(len(run.algorithm) for run in chosen))
    best_us = min(run.total_us for run in chosen)
    lines = [
        f"{first.collective}, {first.payload_bytes} B, {plural(len(first.ranks), 'rank')} on {topology.name}",
        f"{'algorithm':{width}} {'us':>12} {'x':>6} {'GB/s':>9} {'messages':>9} {'busiest link':>12}",
    ]
    for run in sorted(chosen, key=lambda run: run.total_us):
        ratio = run.total_us / best_us if best_us else 1.0
        use = float(run.timeline.link_use.max(initial=0.0))
        lines.append(
            f"{run.algorithm:{width}} {run.total_us:12.2f} {ratio:6.2f} {run.gb_per_s:9.2f} "
            f"{run.timeline.work.messages:9d} {use:12.1%}" + (f"  {run.detail}" if run.detail != run.algorithm else "")
        )
    counted = [f"- {run.algorithm}: with {run.counted}" for run in chosen if run.counted]
    return [*lines, *counted, *(f"- {why}" for why in missing)]


def _document(chosen: Sequence[Run], topology: Topology) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "topology": topology.name,
        "topology_digest": topology.digest,
        "runs": [
            {
                "algorithm": run.algorithm,
                "detail": run.detail,
                "collective": run.collective,
                "payload_bytes": run.payload_bytes,
                "ranks": list(run.ranks),
                "gb_per_s": run.gb_per_s,
                "predicted_us": run.predicted_us,
                "counted": run.counted,
                **timeline_document(run.timeline),
            }
            for run in chosen
        ],
    }
