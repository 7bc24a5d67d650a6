"""`topocomm completion SHELL`: a script with which a shell completes commands, options, and names in their values."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from topocomm.errors import MissingExtraError

SHELLS = ("bash", "zsh", "fish")
WHERE = """Put this in the shell's start-up file, or its output in a file it reads:
  topocomm completion bash > ~/.local/share/bash-completion/completions/topocomm
  topocomm completion zsh > _topocomm                  # in a folder of $fpath
  topocomm completion fish > ~/.config/fish/completions/topocomm.fish
"""
FILES = ("input", "plan", "save", "output", "trace", "compare", "topology")
"""Options whose values are files."""


def add_parser(subparsers: Any) -> None:
    """Add the command to the parser of `topocomm`."""
    parser = subparsers.add_parser(
        "completion",
        description="Print a script with which a shell completes commands, options and names.",
        epilog=WHERE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shell", choices=SHELLS, help="the shell")


def run(args: argparse.Namespace) -> int:
    """Print the script, and return the exit status.

    Raises:
        MissingExtraError: shtab is not installed.
    """
    try:
        import shtab
    except ModuleNotFoundError:
        raise MissingExtraError(f"topocomm completion {args.shell}", "shtab", "completion") from None
    from importlib.metadata import entry_points

    from topocomm.cli.main import COMMANDS, parser_of
    from topocomm.topology.catalog.systems import SYSTEMS

    parser, _ = parser_of(COMMANDS)
    operators = sorted(entry.name for entry in entry_points(group="topocomm.operators"))
    names = {"system": list(SYSTEMS), "operator": operators}
    (commands,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    # shtab leaves out commands without a line of help
    commands._choices_actions = [commands._ChoicesPseudoAction(name, (), words) for name, words in COMMANDS.items()]
    for command in commands.choices.values():
        for action in command._actions:
            action.choices = action.choices or names.get(action.dest)
            if action.dest in FILES and action.metavar in ("FILE", "LOG"):
                vars(action)["complete"] = shtab.FILE
    sys.stdout.write(shtab.complete(parser, args.shell))
    return 0
