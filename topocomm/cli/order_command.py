"""`topocomm order`: the rank order for which plans are cheapest, in the form that a launcher or torch takes."""

from __future__ import annotations

import argparse
import sys
from textwrap import wrap
from typing import Any

from topocomm.cli.command_ranks import speaks
from topocomm.cli.options.arguments import add_operator, parse_bytes, parse_ranks
from topocomm.cli.options.choices import COLLECTIVE_NAMES, COLLECTIVES, OBJECTIVES
from topocomm.cli.options.host_names import take_host_names
from topocomm.cli.options.sources import add_sources, read_job
from topocomm.cli.terminal.output import write_result
from topocomm.cli.terminal.progress_line import ProgressLine
from topocomm.errors import PlanError
from topocomm.operators.find import check_operator_name, find_operator

FORMATS = ("rankfile", "map-by", "devicemesh")


def add_parser(subparsers: Any) -> None:
    """Add the command to the parser of `topocomm`."""
    parser = subparsers.add_parser(
        "order",
        description="Order the ranks of a communicator so that the best plan on a topology is as cheap as can be. The "
        "gain over the present order goes to stderr.",
    )
    add_sources(parser, named_hosts=True)
    parser.add_argument("--collective", choices=COLLECTIVES, default="allreduce", metavar="NAME", help=COLLECTIVE_NAMES)
    parser.add_argument("--bytes", metavar="N", default="1MiB", help="bytes of one rank's value (default 1MiB)")
    add_operator(parser, "default sum", default="sum")
    parser.add_argument("--objective", choices=OBJECTIVES, default="auto", help="default auto")
    parser.add_argument(
        "--ranks",
        metavar="N|GPU0,GPU2,...",
        help="the present order: the first N endpoints, or these (default: all, in the order of the topology)",
    )
    parser.add_argument(
        "--format",
        choices=FORMATS,
        default="rankfile",
        help="rankfile of Open MPI (default), its --map-by where that says the same, or a list for torch's DeviceMesh",
    )


def check(args: argparse.Namespace) -> None:
    """Raise what is wrong with the options alone, before anything large is imported."""
    parse_bytes(args.bytes)
    check_operator_name(args.operator)
    if isinstance(args.hosts, str) and args.format != "rankfile":
        raise PlanError(f"--hosts {args.hosts} goes with --format rankfile only: {args.format} names no hosts")


def run(args: argparse.Namespace) -> int:
    """Print the order, its gain on stderr, and return the exit status."""
    path = args.hosts
    names = take_host_names(args)
    topology = read_job(args)
    if not speaks():
        return 0
    hosts = topology.hosts
    if names is not None and len(names) != len(hosts):
        shown = ", ".join(hosts[:4]) + (", ..." if len(hosts) > 4 else "")
        raise PlanError(
            f"{path}: {len(names)} host names; topology {topology.name!r} has {len(hosts)} hosts ({shown}), expected a "
            "name for each, in this order"
        )
    from topocomm.planning.formats.rank_order_formats import devicemesh, map_by, rankfile
    from topocomm.planning.report.rank_order import best_order

    with ProgressLine("planning for several orders"):
        found = best_order(
            topology,
            args.collective,
            payload_bytes=parse_bytes(args.bytes),
            operator=find_operator(args.operator),
            objective=args.objective,
            ranks=parse_ranks(args.ranks, topology),
        )
    if args.format == "rankfile":
        text = rankfile(found, topology, names)
    else:
        text = map_by(found, topology) if args.format == "map-by" else devicemesh(found, topology)
    print(_folded(found.gain(), "  "), file=sys.stderr)
    lines = (_folded(line, "#   ") if line.startswith("#") else line for line in text.splitlines())
    write_result("".join(f"{line}\n" for line in lines), None)
    return 0


def _folded(line: str, indent: str) -> str:
    return "\n".join(wrap(line, 80, subsequent_indent=indent, break_on_hyphens=False))
