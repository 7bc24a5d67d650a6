"""`python -m attention.jobs.convert MODEL`: make a known model ready for use."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from attention.jobs.job_launch import InputError, JobParser, say
from attention.jobs.model_folders import KNOWN
from attention.jobs.models import convert
from topocomm import TopocommError


def main(arguments: Sequence[str] | None = None) -> int:
    """Convert and say where; returns the exit status."""
    parser = JobParser(prog="python -m attention.jobs.convert", description=__doc__)
    parser.add_argument("model", help=f"one of: {', '.join(KNOWN)}")
    options = parser.parse_args(arguments)
    try:
        say(f"{options.model}: ready in {convert(options.model)}")
    except TopocommError as error:
        say(f"convert: error: {error}")
        return 2 if isinstance(error, InputError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
