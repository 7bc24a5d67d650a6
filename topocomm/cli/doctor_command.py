"""`topocomm doctor`: checks of this machine and launch, or of a given machine, with remedies."""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import TYPE_CHECKING, Any

from topocomm.cli.command_ranks import launched_as, speaks
from topocomm.cli.options.sources import add_sources, read_sources
from topocomm.cli.terminal.output import terminal_columns
from topocomm.cli.terminal.progress_line import ProgressLine
from topocomm.cli.terminal.text_colours import coloured
from topocomm.errors import TopocommError
from topocomm.topology.model import Topology

if TYPE_CHECKING:
    from topocomm.doctor.examine import Examined

OK, FAILED = 0, 1
LEAST_COLUMNS = 40
SECONDS_TO_PRINT = 5.0
"""A launcher ends all ranks as soon as one fails: the others leave the first time to print, whose end ends them."""


def add_parser(subparsers: Any) -> None:
    """Add the command to the parser of `topocomm`."""
    parser = subparsers.add_parser(
        "doctor",
        description="Checks this machine and this launch: alone, or under mpirun or torchrun with its options. With "
        "--input or --system it checks that machine alone.",
    )
    add_sources(parser)
    parser.add_argument(
        "--report",
        action="store_true",
        help="one block of text for a bug report: versions, findings, topology, pairs; without names and addresses",
    )


def run(args: argparse.Namespace) -> int:
    """Print the findings on rank 0, and return the exit status: 1 if one is a FAIL.

    Raises:
        TopologyError: The given machine cannot be read.
    """
    from topocomm.doctor.anonymous import anonymous
    from topocomm.doctor.examine import Examined, check_machine, library_name
    from topocomm.doctor.report import (
        REPORT_WIDTH,
        WIDTH,
        Here,
        findings_text,
        registered_sections,
        report_text,
        section_text,
        ways_section,
    )

    is_dump = bool(args.input or args.system)
    topology: Topology | None
    if is_dump:  # checks of this process do not apply to it
        topology = read_sources(args)
        examined = Examined(check_machine(topology))
    else:
        with ProgressLine("checking this machine"):
            examined, topology = _here(args)
    failed = any(finding.level == "FAIL" for finding in examined.findings)
    if speaks():
        # A launcher ends the whole job as soon as one rank fails: no time for more.
        sections = [] if is_dump or (failed and launched_as() is not None) else registered_sections()
        usual = REPORT_WIDTH if args.report else WIDTH
        width = max(terminal_columns() or usual, LEAST_COLUMNS)
        if args.report:
            names = anonymous(topology, os.environ, args.input or ())
            here = None if is_dump else Here(os.environ, library_name())
            own = examined.findings, topology, names, min(width, usual)
            text = report_text(*own, here=here, ways=examined.ways, sections=sections)
        else:
            ways = ways_section(examined.ways) if examined.ways else ""
            text = findings_text(examined.findings, width) + ways
            text += "".join(section_text(*section, width) for section in sections)
            text = coloured(text)
        sys.stdout.write(text)
    elif failed:
        time.sleep(SECONDS_TO_PRINT)
    return FAILED if failed else OK


def _here(args: argparse.Namespace) -> tuple[Examined, Topology | None]:
    from topocomm.doctor.examine import Examined, can_join, check_alone, check_process, check_ranks
    from topocomm.doctor.finding import Finding
    from topocomm.execute.start import init

    launched = launched_as()
    machine: Topology | TopocommError
    try:
        machine = read_sources(args)
    except TopocommError as error:  # a finding, but for errors in options
        if args.hosts is not None:
            raise
        machine = error
    topology = None if isinstance(machine, TopocommError) else machine
    own = check_process(machine, launched)
    if launched is None:
        return check_alone(own, topology), topology
    if not can_join(own):
        return Examined(own), topology
    try:
        with init() as comm:
            return check_ranks(comm, own, launched), comm.topology
    except TopocommError as error:
        return Examined([*own, Finding("FAIL", "communicator", str(error), "see the other findings")]), topology
