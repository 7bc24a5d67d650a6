"""`python -m attention generate ...`, `... serve ...` and `... decode ...`, alone or under mpirun."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from importlib.util import find_spec

from attention.jobs.job_launch import OK, WORK_FAILED, JobParser, run, say, speaks
from topocomm import MissingExtraError
from topocomm.command_parser import respelled

DISTRIBUTION = "topocomm"
MARK = "LOGSUMEXP"
"""A name that our `attention/__init__.py` has and no other's."""


COMMANDS = {
    "generate": "generate text with a sharded cache",
    "serve": "answer OpenAI's HTTP requests with a sharded cache",
    "decode": "check and time one decode step",
}
"""Name and one line of help of every command; only the module of the chosen one is imported."""
LIBRARIES = ("torch", "triton", "transformers", "mpi4py", "vllm", "sglang")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job that the command line names; returns the exit status."""
    if (problem := why_shadowed()) is not None:
        return _refuse(problem)
    words = list(sys.argv[1:] if arguments is None else arguments)
    parser = parser_of(words[:1])
    if not words:
        parser.print_help()
        return OK
    options = parser.parse_args(words)
    missing = (MissingExtraError("python -m attention", x, "attention") for x in ("torch", "tqdm") if not find_spec(x))
    if (lacking := next(missing, None)) is not None:
        return _refuse(str(lacking))
    return run(options.job(options), options.ranks)


class Parser(JobParser):
    """Parser of these commands, which knows the options of each."""

    def owners(self, option: str) -> list[str]:
        """As inherited: the other commands with this option."""
        commands = parser_of(COMMANDS).commands()
        return [each.prog for each in commands.values() if option in each._option_string_actions]


def parser_of(names: Iterable[str]) -> Parser:
    """Return the parser, which knows the options of the commands named."""
    parser = Parser(prog="python -m attention", description=__doc__)
    parser.add_argument("-V", "--version", action="version", version=_versions(), help="versions, also of libraries")
    commands = parser.add_subparsers(required=True, metavar="{generate,serve,decode}")
    chosen = [respelled(name, COMMANDS) for name in names]
    for name, summary in COMMANDS.items():
        if name in chosen:
            import_module(f"attention.jobs.{name}_job").add_arguments(commands)
        else:
            commands.add_parser(name, help=summary)
    return parser


def _refuse(problem: str) -> int:
    if speaks():
        say(f"python -m attention: error: {problem}")
    return WORK_FAILED if speaks() else OK


def _versions() -> str:
    """Topocomm's version, and those of the libraries that are installed; none is imported."""
    found = []
    for name in (DISTRIBUTION, *LIBRARIES):
        with suppress(PackageNotFoundError):
            found.append(f"{name} {version(name)}")
    return ", ".join(found)


def why_shadowed() -> str | None:
    """None if `attention` is topocomm's, else what is wrong and what to do, in one line.

    Two distributions that install `attention` into one environment overwrite each other's files, so that this
    module can be ours while `attention/__init__.py` is not.
    """
    package = sys.modules["attention"]
    if hasattr(package, MARK):
        return None
    others = [name for name in packages_distributions().get("attention", ()) if name != DISTRIBUTION]
    whose = f"it also belongs to the distribution {others[0]!r}" if others else "another package has overwritten it"
    remedy = f"pip uninstall {others[0] if others else 'attention'} {DISTRIBUTION}, then install {DISTRIBUTION} again"
    return f"{package.__file__} is not {DISTRIBUTION}'s: {whose}; run: {remedy}"


if __name__ == "__main__":
    sys.exit(main())
