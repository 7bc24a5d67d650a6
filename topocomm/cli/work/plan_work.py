"""What `topocomm plan` prints: the chosen schedule for a machine, its proof and its certificate."""

from __future__ import annotations

import argparse
import gc
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path

from topocomm.cli.options.arguments import parse_bytes, parse_ranks, parse_sizes, take_default_bytes
from topocomm.cli.options.choices import SENDRECV
from topocomm.cli.terminal.output import write_result, write_text
from topocomm.cli.terminal.progress_line import ProgressLine
from topocomm.errors import OperatorError, PlanError
from topocomm.operators.find import find_operator
from topocomm.operators.layout import ALIGNMENT_BYTES
from topocomm.operators.operator import Operator
from topocomm.planning.plan import Plan
from topocomm.planning.planner import plan
from topocomm.planning.program.scratch import scratch_bytes
from topocomm.planning.proof.verify import verify
from topocomm.planning.report.in_network_advice import in_network_notes
from topocomm.planning.report.plan_comparison import defect, ranked, request_of
from topocomm.planning.report.plan_text import plan_text
from topocomm.planning.report.plan_views import plan_words
from topocomm.planning.report.sum_comparison import compare_sum, sum_notes
from topocomm.planning.request import Limits
from topocomm.planning.routing.paths import PathFinder
from topocomm.topology.model import Topology

FORMATS = {
    "text": "report.plan_text",
    "json": "formats.plan_json",
    "msccl-xml": "formats.msccl_xml",
    "mscclpp-json": "formats.mscclpp_json",
    "svg": "report.plan_svg",
    "html": "report.plan_html",
}
"""Module of every format; only the chosen one is imported."""


def write_plan(args: argparse.Namespace, whole: Topology, topology: Topology) -> None:
    """Plan, or check a saved plan, and print it.

    Args:
        args: The options, checked.
        whole: The machine.
        topology: The machine with what is down and what is changed.
    """
    before = gc.get_threshold()
    gc.set_threshold(1_000_000, *before[1:])  # each collection would walk the million live objects of a large machine
    try:
        _write_plan(args, *(_launching(args, machine) for machine in (whole, topology)))
    finally:
        gc.set_threshold(*before)


def _launching(args: argparse.Namespace, topology: Topology) -> Topology:
    return topology if args.launch_us is None else replace(topology, launch_us=args.launch_us)


def _write_plan(args: argparse.Namespace, whole: Topology, topology: Topology) -> None:
    if args.sizes is None and args.plan is None:
        take_default_bytes(args)
    with ProgressLine("checking the plan" if args.plan else "planning") as progress:
        if args.sizes is not None:
            text = _crossover(args, topology, progress)
        else:
            chosen = _saved(args, topology) if args.plan else _compared(args, _planned(args, topology), topology)
            changes = args.without or (), args.what_if or ()
            cost = defect(_planned(args, whole), chosen, *changes) if any(changes) else ""
            text = _text(args, chosen, topology, cost) + "\n" if args.format == "text" else ""
    if args.sizes is None and args.save:
        chosen.save(Path(args.save))
    if args.sizes is None and args.trace:
        write_result(_trace(chosen, topology), args.trace)
    if args.format == "text" or args.sizes is not None:
        (write_text if args.format == "text" else write_result)(text, args.output)
        return
    if cost:
        print(cost, file=sys.stderr)
    arguments = {"json": (chosen,), "msccl-xml": (chosen, topology, args.runtime)}.get(args.format, (chosen, topology))
    text = import_module(f"topocomm.planning.{FORMATS[args.format]}").dumps(*arguments)
    write_result(text if text.endswith("\n") else text + "\n", args.output)


def _trace(chosen: Plan, topology: Topology) -> str:
    """Return the simulated messages of a plan, by the rules that it was predicted by, as a trace."""
    from topocomm.simulation.runs import Rules, simulate_plan
    from topocomm.simulation.trace_events import trace_json

    rules = Rules(ports=chosen.ports, port_model=chosen.port_model, launch_us=chosen.launch_us)
    return trace_json(simulate_plan(chosen, topology, rules).timeline)


def _text(args: argparse.Namespace, chosen: Plan, topology: Topology, cost: str) -> str:
    """Return the plan in words, beside what else could be done."""
    operator, unlike = _operator_of(args, chosen)
    if operator is None:
        return plan_text(chosen, topology, unlike, cost)
    if unlike:
        notes = [("switch", note) for note in in_network_notes(chosen, topology, operator)]
        notes += [("sum", note) for note in sum_notes(chosen.as_sum)]
        return plan_text(chosen, topology, unlike, cost, notes)
    return plan_words(replace(chosen, request=request_of(chosen, operator, _limits(args))), topology, cost)


def _compared(args: argparse.Namespace, plan: Plan, topology: Topology) -> Plan:
    """Return a plan that was made with its comparison with one SUM, where its operator has that form."""
    operator, unlike = _operator_of(args, plan)
    return plan if operator is None or unlike else replace(plan, as_sum=compare_sum(plan, topology, operator))


def _operator_of(args: argparse.Namespace, plan: Plan) -> tuple[Operator | None, str]:
    """Return the plan's operator, and the reason, if any, why its request cannot be planned here."""
    try:
        operator = find_operator(plan.operator if args.plan else args.operator or "sum")
    except OperatorError as error:  # of a saved plan: its file is proved without the operator
        return None, str(error)
    row_bytes = operator.default_layout(1).row_bytes
    if plan.row_bytes == row_bytes or not plan.payload_bytes:
        return operator, ""
    return (
        operator,
        f"a row of this plan has {plan.row_bytes} B, one of {operator.name} as it is planned here {row_bytes} B",
    )


def _crossover(args: argparse.Namespace, topology: Topology, progress: Callable[[str], None]) -> str:
    from topocomm.planning.report.crossover import Size, crossover_document, crossover_svg, crossover_text

    operator = find_operator(args.operator or "sum")
    row_bytes = operator.default_layout(1).row_bytes
    sizes = []
    wanted = parse_sizes(args.sizes, row_bytes) if operator.splittable else (1,)
    for number, rows in enumerate(wanted, start=1):
        progress(f"{number} of {len(wanted)}: {rows * row_bytes} B")
        best = _planned(args, topology, rows * row_bytes)
        sizes.append(Size(best, ranked(best, topology, operator, _limits(args))))
    if args.format == "json":
        return json.dumps(crossover_document(sizes, topology.name)) + "\n"
    if args.format == "svg":
        return crossover_svg(sizes, topology.name)
    return crossover_text(sizes, topology.name) + "\n"


def _planned(args: argparse.Namespace, topology: Topology, payload_bytes: int | None = None) -> Plan:
    payload_bytes = parse_bytes(args.bytes) if payload_bytes is None else payload_bytes
    operator, ranks = find_operator(args.operator or "sum"), parse_ranks(args.ranks, topology)
    parts = None
    if args.collective == SENDRECV:
        rows = payload_bytes // operator.default_layout(1).row_bytes
        parts = to_the_next(rows, len(topology.endpoints if ranks is None else ranks))
    return plan(
        topology,
        "alltoall" if parts else args.collective or "allreduce",
        payload_bytes=payload_bytes,
        operator=operator,
        parts=parts,
        objective=args.objective or "auto",
        ports=1 if args.ports is None else args.ports,
        port_model=args.port_model,
        ranks=ranks,
        root=args.root or 0,
        order=args.order or "any",
        max_trees=args.max_trees,
        max_scratch_bytes=_limits(args).max_scratch_bytes,
    )


def to_the_next(rows: int, ranks: int) -> tuple[int, ...]:
    """Return the parts of an alltoall in which every rank sends so many rows to the one after it, in a ring.

    Raises:
        PlanError: There are none: what ranks do not send has no way.
    """
    if not rows:
        raise PlanError(f"--collective {SENDRECV}: give the bytes that a rank sends, at least one row")
    return tuple(rows if dst == (src + 1) % ranks else 0 for src in range(ranks) for dst in range(ranks))


def _limits(args: argparse.Namespace) -> Limits:
    scratch = None if args.max_scratch is None else parse_bytes(args.max_scratch, "--max-scratch")
    return Limits(args.max_trees, scratch)


def _saved(args: argparse.Namespace, topology: Topology) -> Plan:
    from topocomm.planning.certificate_checker.check_certificate import check_certificate

    saved = Plan.load(args.plan)
    if saved.topology_digest != topology.digest:
        raise PlanError(
            f"{args.plan}: made for another topology (digest {saved.topology_digest[:12]}; {topology.name!r} has "
            f"{topology.digest[:12]}); name that one with --input or --system, or plan again"
        )
    try:
        verify(saved.schedule, saved.collective, endpoints=saved.ranks, paths=PathFinder(topology))
        check_certificate(topology, saved)
        operator, unlike = _operator_of(args, saved)
        if operator is not None and not unlike:
            packed = operator.default_layout(saved.schedule.rows).packed_bytes
            own = scratch_bytes(saved.schedule, packed, ALIGNMENT_BYTES)
            if saved.figures.scratch_bytes != own:
                raise PlanError(f"scratch_bytes is {saved.figures.scratch_bytes}, the schedule takes {own}")
    except PlanError as error:
        raise PlanError(f"{args.plan}: {error}") from None
    return saved
