"""`topocomm COMMAND ...`: run a command, and turn errors into one line and an exit status.

Exit status: 0 done, 1 the work failed, 2 bad usage or bad input. A command NAME is the module
NAME_command of this package, with `add_parser(subparsers)`, `run(args) -> int`, and where options can contradict each
other `check(args)`. Only the chosen one is imported, and it imports nothing large before its options are right (what
plans, simulates and fits is in `work`), so that each starts fast.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import NoReturn

from topocomm.cli.command_ranks import speaks
from topocomm.cli.options.arguments import check_outputs
from topocomm.cli.options.other_words import OTHER_WORDS, meant_by, meant_file
from topocomm.cli.terminal.text_colours import complaint
from topocomm.command_parser import CommandParser, with_suggestion
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
    "completion": "a script with which bash, zsh or fish completes these commands",
}
"""Name and one line of help of every command."""
WHICH = """which command when:
  what this machine is and lacks  topocomm inspect; topocomm doctor
  how 8 H100s reduce 64 KiB best  topocomm plan --system dgx-h100 -b 64K
  how long an algorithm takes     topocomm simulate --system dgx-h100 -b 64K
  how fast it is here             mpirun -n 4 topocomm bench
"""


class Parser(CommandParser):
    """Parser of these commands, whose errors are one line."""

    meanings = OTHER_WORDS

    def error(self, message: str) -> NoReturn:
        """End the process with status 2; ranks other than 0 with 0, else a launcher may end rank 0 before it prints."""
        if not speaks():
            self.exit(0)
        self.exit(2, complaint(self.prog, f"{message}; see `{self.prog} --help`"))

    def meant_by(self, word: str) -> str:
        """As inherited; systems, files and sizes are known too."""
        return super().meant_by(word) or meant_by(word, self._option_string_actions)

    def owners(self, option: str) -> list[str]:
        """As inherited: the other commands with this option."""
        commands = parser_of(COMMANDS)[0].commands()
        return [each.prog for each in commands.values() if option in each._option_string_actions]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line, by default that of the process, and return its exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["help"]:
        words = [*words[1:2], "--help"]
    if words and words[0] in ("--version", "-V"):
        from topocomm.cli.versions import versions_text

        sys.stdout.write(versions_text())
        return 0
    name = words[0].lower() if words else ""
    parser, modules = parser_of([name] if name in COMMANDS else [])
    if not words:
        parser.print_help()
        return 0
    args = parser.parse_args(words)
    if args.command not in modules:  # something stood before the command, such as `--`
        parser.error(f"the command {args.command} must come first")
    command = modules[args.command]
    return _run(command.run, args, getattr(command, "check", None))


def parser_of(names: Iterable[str]) -> tuple[Parser, dict[str, ModuleType]]:
    """Return the parser, which knows the options of the commands named, and the modules of these."""
    parser = Parser(
        prog="topocomm",
        description="Reductions planned for the machine at hand.",
        epilog=WHICH,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-V", "--version", action="store_true", help="versions of topocomm and of what it runs on")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    modules = {name: importlib.import_module(f"topocomm.cli.{name}_command") for name in names}
    for name, summary in COMMANDS.items():
        if name in modules:
            modules[name].add_parser(subparsers)
            _add_json(subparsers.choices[name])
        else:
            subparsers.add_parser(name, help=summary)
    return parser, modules


def _add_json(parser: argparse.ArgumentParser) -> None:
    """Add `--json` to a command that has `--format json`."""
    if any(action.dest == "format" and "json" in (action.choices or ()) for action in parser._actions):
        words = "short for --format json"
        parser.add_argument("--json", dest="format", action="store_const", const="json", help=words)


def _run(
    run: Callable[[argparse.Namespace], int],
    args: argparse.Namespace,
    check: Callable[[argparse.Namespace], None] | None = None,
) -> int:
    is_alike = True  # options, and a machine that is named, are the same on all ranks: rank 0 says what is wrong
    try:
        if check is not None:
            check(args)
        if speaks():  # who writes
            check_outputs(args)
        is_alike = bool(vars(args).get("system") or vars(args).get("input"))
        status = run(args)
        sys.stdout.flush()
        if note := vars(args).get("note"):
            print(note, file=sys.stderr)
    except TopocommError as error:
        # A TopocommError that is also a ValueError is bad input; others are failures of the work.
        if isinstance(error, ValueError) and not speaks() and is_alike:
            return 0
        _complain(args, with_suggestion(str(error), OTHER_WORDS) + meant_file(str(error)))
        return 2 if isinstance(error, ValueError) else 1
    except BrokenPipeError:  # the reader of a pipe has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except OSError as error:
        _complain(args, f"{error.filename}: {error.strerror}" if error.filename else str(error))
        return 1
    except KeyboardInterrupt:
        _complain(args, "interrupted")
        return 130
    return status


def _complain(args: argparse.Namespace, message: str) -> None:
    sys.stderr.write(complaint(f"topocomm {args.command}", message))
