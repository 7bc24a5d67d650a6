"""`topocomm doctor`: checks of this machine and launch, or of a given machine, with remedies."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any

from topocomm.cli.command_ranks import join, launched_as, speaks
from topocomm.cli.sources import add_sources, read_sources
from topocomm.doctor.anonymous import anonymous
from topocomm.doctor.checks.machine_checks import check_machine
from topocomm.doctor.examine import Examined, can_join, check_alone, check_process, check_ranks, library_name
from topocomm.doctor.finding import Finding
from topocomm.doctor.registered_checks import Section, registered_sections
from topocomm.doctor.report import Here, findings_text, report_text, section_text, ways_section
from topocomm.errors import TopocommError
from topocomm.topology.model import Topology

OK, FAILED = 0, 1


def add_parser(subparsers: Any) -> None:
    """Add the command to the parser of `topocomm`."""
    parser = subparsers.add_parser(
        "doctor",
        help="what is in order here, what is not, and what to do about it",
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
    given = bool(args.input or args.system)
    examined, topology = _given(args) if given else _here(args)
    failed = any(finding.level == "FAIL" for finding in examined.findings)
    if speaks():
        # A launcher ends the whole job as soon as one rank fails: no time for more.
        sections = [] if given or (failed and launched_as() is not None) else registered_sections()
        sys.stdout.write(_text(args, examined, topology, sections, given=given))
    return FAILED if failed else OK


def _given(args: argparse.Namespace) -> tuple[Examined, Topology]:
    """Check a dump or catalogue system; checks of this process do not apply to it."""
    topology = read_sources(args)
    return Examined(check_machine(topology)), topology


def _here(args: argparse.Namespace) -> tuple[Examined, Topology | None]:
    launched = launched_as()
    found = _topology(args)
    topology = None if isinstance(found, TopocommError) else found
    own = check_process(found, launched)
    if launched is None:
        return check_alone(own, topology), topology
    if not can_join(own):
        return Examined(own), topology
    try:
        with join() as comm:
            return check_ranks(comm, own, launched), comm.topology
    except TopocommError as error:
        return Examined([*own, Finding("FAIL", "communicator", str(error), "see the other findings")]), topology


def _text(
    args: argparse.Namespace,
    examined: Examined,
    topology: Topology | None,
    sections: Sequence[Section],
    *,
    given: bool,
) -> str:
    if not args.report:
        ways = ways_section(examined.ways) if examined.ways else ""
        return findings_text(examined.findings) + ways + "".join(section_text(*section) for section in sections)
    names = anonymous(topology, os.environ, args.input or ())
    here = None if given else Here(os.environ, library_name())
    return report_text(examined.findings, topology, names, here=here, ways=examined.ways, sections=sections)


def _topology(args: argparse.Namespace) -> Topology | TopocommError:
    """Return this machine, or the error of reading it as a finding; errors in options are raised."""
    try:
        return read_sources(args)
    except TopocommError as error:
        if args.hosts is not None:
            raise
        return error
