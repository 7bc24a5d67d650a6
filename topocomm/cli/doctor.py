"""`topocomm doctor`: what is in order here and in this launch, what is not, and what to do about it."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any

from topocomm.cli.job import join, launched_as, speaks
from topocomm.cli.sources import add_sources, read_sources
from topocomm.doctor.examine import Examined, can_join, check_alone, check_process, check_ranks, library_name
from topocomm.doctor.finding import Finding
from topocomm.doctor.report import findings_text, report_text, ways_section
from topocomm.errors import TopocommError
from topocomm.topology.model import Topology

OK, FAILED = 0, 1


def add_parser(subparsers: Any) -> None:
    """Adds the command's parser."""
    parser = subparsers.add_parser(
        "doctor",
        help="what is in order here, what is not, and what to do about it",
        description="Checks this machine and this launch: alone, or under mpirun or torchrun with its options.",
    )
    add_sources(parser)
    parser.add_argument("--report", action="store_true", help="also versions, variables and machine, to be pasted")


def run(args: argparse.Namespace) -> int:
    """Prints the findings, on rank 0; the exit status is 1 where one is a FAIL."""
    launched = launched_as()
    topology = _topology(args)
    own = check_process(topology, launched)
    examined = check_alone(own) if launched is None else _with_ranks(own, launched)
    if speaks():
        sys.stdout.write(_text(args, examined, topology))
    return FAILED if any(finding.level == "FAIL" for finding in examined.findings) else OK


def _with_ranks(own: Sequence[Finding], launched: tuple[str, int, int]) -> Examined:
    if not can_join(own):
        return Examined(own)
    try:
        with join() as comm:
            return check_ranks(comm, own, launched)
    except TopocommError as error:
        return Examined([*own, Finding("FAIL", "communicator", str(error), "see the other findings")])


def _text(args: argparse.Namespace, examined: Examined, topology: Topology | TopocommError) -> str:
    text = findings_text(examined.findings)
    if examined.ways:
        text += ways_section(examined.ways)
    if args.report:
        machine = None if isinstance(topology, TopocommError) else topology
        text += report_text(machine, os.environ, library_name())
    return text


def _topology(args: argparse.Namespace) -> Topology | TopocommError:
    """The machine that is meant; what is wrong with it is a finding, what is wrong with the options is raised."""
    try:
        return read_sources(args)
    except TopocommError as error:
        if args.input or args.system:
            raise
        return error
