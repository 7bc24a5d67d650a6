"""The ranks of a job of faults.py: random calls until one of them is killed or stopped, then the others go on.

Every rank writes what happens to it into a pipe, a line of JSON each time.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from mpi4py import MPI
from streams import Stream, topology

import topocomm

FIRST_CALLS = 15
"""In every other phase; in the rest ranks are hit in the first uses of their calls."""
LAST_CALLS = 10
TEXT_CHARS = 1500
"""Lines stay shorter than what a pipe takes in one piece."""


def main() -> None:
    """As many faults as asked for, then some more calls and an orderly end."""
    parser = argparse.ArgumentParser(description="Ranks that are killed or stopped.")
    parser.add_argument("--pipe", type=Path, required=True)
    parser.add_argument("--faults", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--way", required=True)
    parser.add_argument("--limit-s", type=float, required=True)
    parser.add_argument("--at-once", action="store_true", help="end without MPI_Finalize, which may wait for the dead")
    args = parser.parse_args()
    pipe = os.open(args.pipe, os.O_WRONLY)

    def say(event: str, **more: object) -> None:
        known = {"event": event, "phase": phase, "rank": comm.rank, "process": os.getpid()}
        os.write(pipe, json.dumps({**known, **more}).encode() + b"\n")

    world = MPI.COMM_WORLD
    comm, phase = topocomm.Communicator.from_mpi(world, topology(args.way, world.size)), 0
    while phase < args.faults:
        stream = Stream(comm, args.seed + phase)
        try:
            for _ in range(FIRST_CALLS * (phase % 2)):
                stream.step()
            comm.barrier()
            say("begins")
            comm.session.waiting.timeout_s = args.limit_s
            while True:
                stream.step()
        except BaseException as error:
            say("raised", kind=type(error).__name__, text=str(error)[:TEXT_CHARS], calls=stream.made)
            if not isinstance(error, topocomm.TopocommError):
                raise
        comm = comm.shrink()
        phase += 1
    stream = Stream(comm, args.seed + phase)
    for _ in range(LAST_CALLS):
        stream.step()
    stream.settle()
    comm.close()
    say("ends", calls=stream.made)
    if args.at_once:
        os._exit(0)


if __name__ == "__main__":
    main()
