"""`python -m attention generate ...` and `python -m attention decode ...`, alone or under mpirun."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec

from attention.jobs.job_launch import OK, WORK_FAILED, JobParser, launched_as, run, say
from attention.jobs.shadowed import why_shadowed
from topocomm import MissingExtraError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job that the command line names; returns the exit status."""
    missing = (MissingExtraError("python -m attention", x, "attention") for x in ("torch", "tqdm") if not find_spec(x))
    problem = why_shadowed() or next(missing, None)
    if problem is not None:
        speaks = (launched_as() or (0, 1))[0] == 0
        if speaks:
            say(f"python -m attention: error: {problem}")
        return WORK_FAILED if speaks else OK
    from attention.jobs import decode_job as decode
    from attention.jobs import generate_job as generate

    parser = JobParser(prog="python -m attention", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="{generate,decode}")
    for module in (generate, decode):
        module.add_arguments(commands)
    options = parser.parse_args(arguments)
    return run(options.job(options), options.ranks)


if __name__ == "__main__":
    sys.exit(main())
