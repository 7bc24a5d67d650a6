"""`python -m attention generate ...`, `... serve ...` and `... decode ...`, alone or under mpirun."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.metadata import packages_distributions
from importlib.util import find_spec

from attention.jobs.job_launch import OK, WORK_FAILED, JobParser, run, say, speaks
from topocomm import MissingExtraError

DISTRIBUTION = "topocomm"
MARK = "LOGSUMEXP"
"""A name that our `attention/__init__.py` has and no other's."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job that the command line names; returns the exit status."""
    missing = (MissingExtraError("python -m attention", x, "attention") for x in ("torch", "tqdm") if not find_spec(x))
    problem = why_shadowed() or next(missing, None)
    if problem is not None:
        if speaks():
            say(f"python -m attention: error: {problem}")
        return WORK_FAILED if speaks() else OK
    from attention.jobs import decode_job as decode
    from attention.jobs import generate_job as generate
    from attention.jobs import serve_job as serve

    parser = JobParser(prog="python -m attention", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="{generate,serve,decode}")
    for module in (generate, serve, decode):
        module.add_arguments(commands)
    options = parser.parse_args(arguments)
    return run(options.job(options), options.ranks)


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
