"""`topocomm COMMAND ...`: run a command, and turn errors into one line and an exit status.

Exit status: 0 done, 1 the work failed, 2 bad usage or bad input. A command NAME is the module
NAME_command of this package, with `add_parser(subparsers)` and `run(args) -> int`; only the chosen one is imported, so
that each starts fast.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from topocomm.cli.command_ranks import speaks
from topocomm.errors import TopocommError

COMMANDS = {
    "inspect": "the topology of this machine, of captured dumps, or of a catalogue system",
    "plan": "the schedule of a collective on a topology, with its proof and its bounds",
    "simulate": "what a plan, a library's algorithm or a decode step takes, message by message",
    "order": "the rank order of a communicator that makes its plans cheapest on a topology",
    "calibrate": "a machine's figures, fitted to logs of benchmarks, with the error of predictions",
    "schema": "the JSON Schemas of the documents that these commands write and read",
    "bench": "measured latencies beside the alternatives, under mpirun, torchrun or alone",
    "doctor": "what is in order here, what is not, and what to do about it",
}
"""Name and one line of help of every command."""


class Parser(argparse.ArgumentParser):
    """Argument parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        """End the process with status 2; ranks other than 0 with 0, else a launcher may end rank 0 before it prints."""
        if not speaks():
            self.exit(0)
        self.exit(2, f"{self.prog}: {message}; see `{self.prog} --help`\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line, by default that of the process, and return its exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    parser = Parser(prog="topocomm", description="Reductions planned for the machine at hand.")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    module = None
    for name, summary in COMMANDS.items():
        if words[:1] == [name]:
            module = importlib.import_module(f"topocomm.cli.{name}_command")
            module.add_parser(subparsers)
        else:
            subparsers.add_parser(name, help=summary)
    args = parser.parse_args(words)
    if module is None:  # something stood before the command, such as `--`
        parser.error(f"the command {args.command} must come first")
    return _run(module.run, args)


def _run(run: Callable[[argparse.Namespace], int], args: argparse.Namespace) -> int:
    try:
        status = run(args)
        sys.stdout.flush()
    except TopocommError as error:
        # A TopocommError that is also a ValueError is bad input; others are failures of the work.
        _complain(f"topocomm {args.command}: {error}")
        return 2 if isinstance(error, ValueError) else 1
    except BrokenPipeError:  # the reader of a pipe has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except OSError as error:
        what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        _complain(f"topocomm {args.command}: {what}")
        return 1
    except KeyboardInterrupt:
        _complain(f"topocomm {args.command}: interrupted")
        return 130
    return status


def _complain(message: str) -> None:
    print(" ".join(message.split()).encode("ascii", "backslashreplace").decode(), file=sys.stderr)
