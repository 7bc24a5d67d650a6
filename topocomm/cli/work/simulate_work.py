"""What `topocomm simulate` prints: what a plan or a library's algorithm takes on a machine that is not there."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from textwrap import wrap
from typing import Any

from topocomm.cli.options.arguments import parse_bytes, parse_ranks, take_default_bytes
from topocomm.cli.options.sources import changed
from topocomm.cli.terminal.progress_line import ProgressLine
from topocomm.cli.work.decode_work import write_step
from topocomm.cli.work.simulated_output import write_simulated, write_sweep
from topocomm.cli.work.sweeps import reasons
from topocomm.errors import PlanError, TopologyError
from topocomm.operators.find import find_operator
from topocomm.planning.plan import Plan
from topocomm.planning.proof.verify import verify
from topocomm.planning.routing.paths import PathFinder
from topocomm.simulation.protocols import transport
from topocomm.simulation.runs import Rules, Run, simulate_collective, simulate_plan
from topocomm.simulation.timeline_words import timeline_document, timeline_text
from topocomm.topology.catalog.systems import catalog
from topocomm.topology.draw.names import plural
from topocomm.topology.model import Topology

SCHEMA = "topocomm.simulation/1"


def write_simulation(args: argparse.Namespace, whole: Topology | None, topology: Topology | None) -> None:
    """Simulate, and print it.

    Args:
        args: The options, checked.
        whole: The machine; None for a sweep over hosts.
        topology: The machine with what is down and what is changed; None for a sweep over hosts.
    """
    if topology is not None:
        _check_links(args, topology)
    if args.model is not None:
        write_step(args, topology, _machine)
        return
    if args.sweep is not None:
        _sweep(args, topology)
        return
    assert whole is not None  # of a sweep alone it is
    assert topology is not None
    if args.plan is None:
        take_default_bytes(args)
    with ProgressLine("simulating", steps=len(args.names)) as progress:
        chosen, missing = _saved_run(args, whole, topology) if args.plan else _runs(args, topology, progress)
    lines = _table(chosen, missing, topology) if args.compare else _single(chosen[0], topology)
    write_simulated(args, chosen[0].timeline, lines, lambda: _document(chosen, topology))


def _machine(args: argparse.Namespace, hosts: int) -> Topology:
    """The system with so many hosts, with what is down and what is changed."""
    topology = changed(args, catalog(args.system, hosts=hosts))
    _check_links(args, topology)
    return topology


def _check_links(args: argparse.Namespace, topology: Topology) -> None:
    try:
        PathFinder(topology)
    except PlanError as error:  # an impossible figure of a link: say which file it is from
        where = ", ".join(args.input or ())
        raise TopologyError(f"{where}: {error}" if where else str(error)) from None


def _runs(args: argparse.Namespace, topology: Topology, progress: Callable[[str], None]) -> tuple[list[Run], list[str]]:
    """The runs of all algorithms asked for; why others of several are not possible here."""
    chosen, missing, names = [], [], args.names
    for name in names:
        progress(name)
        try:
            chosen.append(_run(args, topology, name))
        except PlanError as error:
            if len(names) == 1:
                raise
            missing.append(f"{name}: {error}")
    if not chosen:
        raise PlanError(missing[0])
    return chosen, missing


def _rules(args: argparse.Namespace) -> Rules:
    return Rules(
        ports=args.ports,
        port_model=args.port_model or "loggp",
        launch_us=args.launch_us,
        fold_gb_per_s=args.fold_gb_per_s,
        transport=None if args.protocols is None else transport(args.protocols),
        as_called=any(name.startswith("nccl") for name in args.names),
    )


def _run(args: argparse.Namespace, topology: Topology, algorithm: str, payload_bytes: int | None = None) -> Run:
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


def _sweep(args: argparse.Namespace, machine: Topology | None) -> None:
    if args.sweep.over == "hosts":
        take_default_bytes(args)
    where = args.system if machine is None else machine.name
    size = "" if args.bytes is None else f", {parse_bytes(args.bytes)} B"
    title = f"{args.collective or 'allreduce'}{size} on {where}, us"
    document = {"schema": SCHEMA, "topology": None if machine is None else machine.name, "system": args.system}
    write_sweep(args, title, _timer(args, machine), document)


def _timer(args: argparse.Namespace, machine: Topology | None) -> Callable[[int, str], float]:
    """Return the function that gives the time of a value and an algorithm."""
    known: dict[int, Topology] = {}

    def time_us(value: int, algorithm: str) -> float:
        if machine is not None:
            return _run(args, machine, algorithm, value).total_us
        if value not in known:
            known.clear()  # machines of thousands of hosts are large
            known[value] = _machine(args, value)
        return _run(args, known[value], algorithm).total_us

    return time_us


def _single(chosen: Run, topology: Topology) -> list[str]:
    timeline = chosen.timeline
    detail = f" ({chosen.detail})" if chosen.detail != chosen.algorithm else ""
    return [
        f"{chosen.collective}, {chosen.payload_bytes} B, {plural(len(chosen.ranks), 'rank')} on {topology.name}",
        *wrap(
            f"{chosen.algorithm}{detail}: {chosen.total_us:.2f} us, {chosen.gb_per_s:.2f} GB/s, "
            f"{plural(timeline.work.messages, 'message')}, {timeline.work.sent_bytes} B sent",
            80,
            subsequent_indent="  ",
        ),
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
    counted = [f"{run.algorithm}: with {run.counted}" for run in chosen if run.counted]
    return [*lines, *reasons([*counted, *missing])]


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
