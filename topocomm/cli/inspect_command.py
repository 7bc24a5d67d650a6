"""`topocomm inspect`: the topology of this machine or job, of captured dumps, or of a catalogue system."""

from __future__ import annotations

import argparse
import sys
import textwrap
from importlib import import_module
from pathlib import PurePath
from typing import TYPE_CHECKING

from topocomm.cli.command_ranks import launched_as, speaks
from topocomm.cli.options.arguments import format_by_name
from topocomm.cli.options.sources import add_sources, read_job, read_sources
from topocomm.cli.terminal.output import terminal_columns, write_result, write_text
from topocomm.cli.terminal.progress_line import ProgressLine
from topocomm.cli.terminal.proposal import next_commands
from topocomm.errors import TopologyError
from topocomm.topology.draw import measured
from topocomm.topology.draw.topology_text import render, to_ascii
from topocomm.topology.model import Topology

if TYPE_CHECKING:
    from topocomm.doctor.finding import Finding

FORMATS = {
    "text": ("a tree on one screen", "draw.topology_text", "render"),
    "matrix": ("the layout of `nvidia-smi topo -m`", "draw.code_matrix_text", "render"),
    "json": ("topology JSON, which --input reads", "readers.plain.topology_json", "dumps"),
    "dot": ("Graphviz", "draw.dot", "render"),
    "svg": ("a picture", "draw.svg.machine_svg", "render"),
    "html": ("a picture to move and zoom, with the facts of each part", "draw.html_page", "render"),
    "nccl-xml": ("an NCCL topology file", "export.nccl_xml_writer", "render"),
    "env": ("a shell file: network cards and cores for each rank", "export.environment", "render"),
}
"""(one line of help, module, function) of every format."""
COLUMNS = 80
MOST_THREADS = 16
"""Limit of threads that measure without a launcher."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser of `topocomm`."""
    parser = subparsers.add_parser(
        "inspect",
        description="The topology of this machine (under mpirun, torchrun or srun of the whole job), of captured dumps "
        "(format recognised by content), or of a catalogue system.",
    )
    add_sources(parser)
    parser.add_argument(
        "--invent-bus-ids",
        action="store_true",
        help="with --system NAME --format nccl-xml: make up the bus ids that a catalogue system lacks, for simulation "
        "in NCCL; no machine has them",
    )
    words = "; ".join(f"{name}: {what}" for name, (what, *_) in FORMATS.items())
    parser.add_argument("--format", choices=FORMATS, help=f"default: text; {words}")
    parser.add_argument(
        "--compare", metavar="FILE", help="say in text how the topology differs from that in a captured dump or JSON"
    )
    parser.add_argument(
        "--measure",
        action="store_true",
        help="time messages between the ranks of this job (without a launcher: threads, one a core): measured figures "
        "beside nominal ones, and the topology with those; --format json is one to plan on",
    )
    parser.add_argument("--output", metavar="FILE", help="write there instead of stdout, whole or not at all")


def run(args: argparse.Namespace) -> int:
    """Print or write the topology, and return the exit status.

    Raises:
        TopologyError: The source is unusable, or the format cannot show it.
        OSError: The output cannot be written.
    """
    args.format = format_by_name(args.format, args.output, FORMATS)
    _check(args)
    topology = _topology(args)
    if not speaks():
        return 0
    is_screen = args.format in (None, "text") and args.compare is None
    if args.compare is not None:
        text = _comparison(args, topology)
    elif is_screen:
        findings = _findings(topology)
        proposed = next_commands(
            args, topology, is_faulty=any(finding.level in ("warn", "FAIL") for finding in findings)
        )
        text = render(topology, next_command=proposed, findings=[finding[:3] for finding in findings])
    else:  # only its modules are imported, so that each format starts fast
        _, module, function = FORMATS[args.format]
        is_folded = args.format == "matrix" and args.output is None
        more = {"columns": terminal_columns()} if is_folded else {}
        text = getattr(import_module(f"topocomm.topology.{module}"), function)(topology, **more)
    if args.measure:
        table = measured.render(topology)
        if is_screen:
            text = f"{text}\n{table}"
        else:
            sys.stderr.write(table)
    write = write_text if args.format in (None, "text") else write_result
    write(text, args.output, plain=to_ascii)
    return 0


def _check(args: argparse.Namespace) -> None:
    if args.compare is not None and args.format not in (None, "text"):
        raise TopologyError(f"--compare prints text: leave --format {args.format} out")
    if args.invent_bus_ids and (args.system is None or args.format != "nccl-xml" or args.hosts not in (None, 1)):
        raise TopologyError("--invent-bus-ids goes with --system NAME --format nccl-xml, of one host, only")
    if args.measure and (args.input or args.system or args.hosts is not None):
        option = "--input" if args.input else "--system" if args.system else "--hosts"
        raise TopologyError(f"--measure times messages on the machine of this job: leave {option} out")


def _topology(args: argparse.Namespace) -> Topology:
    """Return the topology, measured where asked; without a launcher, by threads on the endpoints."""
    if args.invent_bus_ids:
        from topocomm.topology.catalog.simulated_systems import simulated

        return simulated(args.system)
    if not args.measure:
        with ProgressLine("reading"):
            return read_job(args)
    from topocomm.execute.measure.ping_pong import measure
    from topocomm.execute.start import init, run_local

    with ProgressLine("timing messages between pairs of ranks"):
        if launched_as() is None:
            here = read_sources(args)
            return run_local(measure, ranks=min(max(len(here.endpoints), 2), MOST_THREADS), topology=here)[0]
        with init() as comm:
            return measure(comm)


def _comparison(args: argparse.Namespace, topology: Topology) -> str:
    from topocomm.topology.draw import topology_diff
    from topocomm.topology.recognise import load

    other = load(args.compare)
    name = PurePath(args.compare).name
    own = args.system or (PurePath(args.input[0]).name if args.input else "this machine")
    if own == name:
        own, name = f"{own} (1)", f"{name} (2)"
    text = topology_diff.render(topology, other, names=(own, name))
    return "".join(f"{part}\n" for line in text.splitlines() for part in _folded(line))


def _folded(line: str) -> list[str]:
    """A line of a comparison in 80 columns, its rest deeper; blank ones stay."""
    wrapper = textwrap.TextWrapper(COLUMNS, break_long_words=False, break_on_hyphens=False)
    wrapper.subsequent_indent = " " * (len(line) - len(line.lstrip()) + 4)
    return wrapper.wrap(line) or [""]


def _findings(topology: Topology) -> list[Finding]:
    """What `doctor` finds odd about the machine itself, but what the reader of a capture warns of."""
    from topocomm.doctor.checks.machine_checks import check_parts

    return [finding for finding in check_parts(topology) if finding.level != "ok"]
