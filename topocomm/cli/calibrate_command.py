"""`topocomm calibrate`: fit a machine's figures to logs of benchmarks, and say how far predictions are off."""

from __future__ import annotations

import argparse

from topocomm.errors import TopologyError


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser of `topocomm`."""
    parser = subparsers.add_parser(
        "calibrate",
        description="Fit what libraries take on a machine to logs of benchmarks: on a part of the rows, with the error "
        "on the rest. Reads nccl-tests and rccl-tests (text, JSON), the OSU micro-benchmarks, mpiBench.",
    )
    parser.add_argument("--input", nargs="+", action="extend", required=True, metavar="LOG", help="logs of one machine")
    machine = parser.add_mutually_exclusive_group(required=True)
    machine.add_argument(
        "--system", metavar="NAME", help="a catalogue system, with as many hosts as the largest log has"
    )
    machine.add_argument(
        "--topology", metavar="FILE", help="topology JSON or captured output of a tool, nominal figures"
    )
    parser.add_argument("--hosts", type=int, metavar="N", help="hosts of logs that do not say it (OSU, mpiBench)")
    parser.add_argument("--ranks", type=int, metavar="N", help="ranks of logs that do not say it (OSU)")
    parser.add_argument("--all-rows", action="store_true", help="fit all rows: no row is left to tell the error")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="of the report; default text")
    parser.add_argument(
        "--output", metavar="FILE", help="write the topology with measured figures, for plan and simulate"
    )


def check(args: argparse.Namespace) -> None:
    """Raise what is wrong with the options alone, before anything large is imported."""
    for name in ("hosts", "ranks"):
        count = getattr(args, name)
        if count is not None and count < 1:
            raise TopologyError(f"--{name} {count}: expected 1 or more")
    if args.system is not None:
        from topocomm.topology.catalog.systems import reference_host

        reference_host(args.system)


def run(args: argparse.Namespace) -> int:
    """Fit, report, write the topology, and return the exit status."""
    from topocomm.cli.work.calibrate_work import write_calibration

    write_calibration(args)
    return 0
