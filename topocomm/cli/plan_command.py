"""`topocomm plan`: the chosen schedule for a machine, its proof and its certificate."""

from __future__ import annotations

import argparse
from typing import Any

from topocomm.cli.command_ranks import speaks
from topocomm.cli.options.arguments import (
    add_operator,
    add_sizes,
    format_by_name,
    nccl_sizes,
    parse_bytes,
    parse_ranks,
    range_bytes,
    take_one_size,
)
from topocomm.cli.options.choices import (
    COLLECTIVE_NAMES,
    COLLECTIVES,
    OBJECTIVES,
    ORDERS,
    PLAN_FORMATS,
    PORT_MODELS,
    RUNTIMES,
    SENDRECV,
)
from topocomm.cli.options.sources import add_changes, add_sources, changed, read_job
from topocomm.errors import PlanError
from topocomm.operators.find import check_operator_name

BYTES = (
    "bytes of one rank's value, or of the whole for collectives in parts, as allgather (default 64KiB, "
    "or the one value of an operator without rows); 0: latency only"
)
OF_A_PLAN = (
    "bytes",
    "ranks",
    "operator",
    "collective",
    "objective",
    "ports",
    "port-model",
    "launch-us",
    "order",
    "root",
    "max-trees",
    "max-scratch",
    "without",
    "what-if",
)
"""Options that a saved plan answers."""


def add_parser(subparsers: Any) -> None:
    """Add the command to the parser of `topocomm`."""
    parser = subparsers.add_parser(
        "plan",
        description="Plan a collective on a topology, prove the schedule, and say how far it can be from the optimum.",
    )
    add_sources(parser)
    parser.add_argument(
        "--collective",
        choices=(*COLLECTIVES, SENDRECV),
        metavar="NAME",
        help=f"{COLLECTIVE_NAMES}; or {SENDRECV}: an alltoall in which every rank sends to the next one",
    )
    parser.add_argument("--bytes", metavar="N", help=BYTES)
    add_sizes(parser, "a table of the best plan for each size, 8:128MiB:4")
    add_operator(parser, "default sum; attention.logsumexp")
    parser.add_argument("--objective", choices=OBJECTIVES, help="default auto")
    parser.add_argument("--ports", type=int, metavar="K", help="messages an endpoint sends at once (default 1)")
    parser.add_argument("--port-model", choices=PORT_MODELS, help="default: loggp for auto, alpha otherwise")
    parser.add_argument(
        "--launch-us", type=float, metavar="US", help="what a round costs to start (else the topology's)"
    )
    parser.add_argument("--order", choices=ORDERS, help="default any; canonical: one tree for any number of ranks")
    parser.add_argument("--root", type=int, metavar="R", help="root of reduce, broadcast, gather or scatter (0)")
    parser.add_argument("--max-trees", type=int, metavar="N", help="trees per root of packed trees (throughput)")
    parser.add_argument("--max-scratch", metavar="BYTES", help="what a plan may take beside a rank's own value")
    parser.add_argument("--ranks", metavar="N|GPU0,GPU2,...", help="the first N endpoints, or these, in rank order")
    add_changes(parser)
    parser.add_argument("--plan", metavar="FILE", help="check and show this saved plan instead of making one")
    parser.add_argument("--save", metavar="FILE", help="also write the plan JSON")
    parser.add_argument(
        "--trace", metavar="FILE", help="also write the messages over predicted time, for ui.perfetto.dev"
    )
    parser.add_argument("--output", metavar="FILE", help="write there instead of stdout, whole or not at all")
    parser.add_argument(
        "--format",
        choices=PLAN_FORMATS,
        help="default text, or by the ending of --output; msccl-xml and mscclpp-json are programs for those runtimes "
        "(sums on GPUs), svg is a picture, html one to move and zoom with a panel for each round",
    )
    parser.add_argument(
        "--runtime",
        choices=RUNTIMES,
        help="what reads the msccl-xml: RCCL (default where xGMI joins the GPUs), Azure/msccl-executor-nccl (default "
        "elsewhere) or microsoft/msccl",
    )


def check(args: argparse.Namespace) -> None:
    """Raise what is wrong with the options alone, before anything large is imported."""
    args.format = format_by_name(args.format, args.output, PLAN_FORMATS) or "text"
    if args.runtime is not None and args.format != "msccl-xml":
        raise PlanError(f"--runtime {args.runtime} goes with --format msccl-xml only: no other format is for a runtime")
    take_one_size(args)
    args.sizes = nccl_sizes(args, given=args.sizes)
    if args.plan is not None:
        for option in OF_A_PLAN:
            if getattr(args, option.replace("-", "_")) is not None:
                raise PlanError(f"--{option} does not go with --plan FILE: the file says what its plan is for")
    if args.sizes is not None:
        _check_sizes(args)
    for option in ("bytes", "max-scratch"):
        if (text := getattr(args, option.replace("-", "_"))) is not None:
            parse_bytes(text, f"--{option}")
    if args.operator is not None:
        check_operator_name(args.operator)


def _check_sizes(args: argparse.Namespace) -> None:
    given = [option for option in ("bytes", "plan", "save", "trace") if getattr(args, option) is not None]
    if given or args.format not in ("text", "json", "svg"):
        what = f"--{given[0]}" if given else f"--format {args.format}"
        raise PlanError(
            f"{what} does not go with --sizes: a table has no plan; expected --format text, json or svg alone"
        )
    range_bytes(args.sizes)


def run(args: argparse.Namespace) -> int:
    """Plan, or check a saved plan, print it, and return the exit status."""
    whole = read_job(args)
    if not speaks():
        return 0
    topology = changed(args, whole)
    parse_ranks(args.ranks, topology)
    from topocomm.cli.work.plan_work import write_plan

    write_plan(args, whole, topology)
    return 0
