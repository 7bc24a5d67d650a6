"""A job that does little or goes wrong on purpose: `toy_job.py WAY [--ranks N]`, or several in one launch.

`toy_job.py several JSON` runs one job for each list of arguments in the JSON, one after the other. Rank 0 prints as
JSON, for each of them, what every rank's process would have ended with and said: status, stdout and stderr.
"""

import json
import os
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO

import numpy as np

from attention.jobs.job_launch import InputError, JobParser, SetupError, launched_as, positive, run
from topocomm import SUM


class ToyJob:
    name = "toy"

    def __init__(self, way):
        self.way = way

    def prepare(self, ranks):
        rank = (launched_as() or (0, 1))[0]
        if self.way == "bad input":
            raise InputError("the toy is broken")
        if self.way == "bad input on 2" and rank == 2:
            raise InputError("the toy is broken here")
        if self.way == "lacks":
            raise SetupError("no batteries")

    def work(self, comm, cpu_threads):
        assert cpu_threads >= 1
        if self.way == "raise on 1" and comm.rank == 1:
            raise KeyError("a planned mistake")
        return int(comm.allreduce(np.array([comm.rank + 1]), SUM)[0])

    def report(self, result):
        if self.way == "raise in report":
            raise KeyError("a planned mistake")
        if self.way == "slow report":
            time.sleep(3)
            print(f"idle {[round(busy_s(pid), 2) for pid in siblings()]}")
        print(f"sum {result}")
        return 1 if self.way == "work failed" else 0


def siblings():
    """The other ranks' process ids: the other children of mpirun."""
    parent = os.getppid()
    with open(f"/proc/{parent}/task/{parent}/children") as children:
        return [int(pid) for pid in children.read().split() if int(pid) != os.getpid()]


def busy_s(pid):
    """CPU seconds that the process uses in one second."""

    def used():
        with open(f"/proc/{pid}/stat") as stat:
            fields = stat.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    before = used()
    time.sleep(1)
    return used() - before


def main(arguments):
    """Run one job; the exit status."""
    parser = JobParser(prog="toy")
    parser.add_argument("way")
    parser.add_argument("--ranks", type=positive)
    options = parser.parse_args(arguments)
    return run(ToyJob(options.way), options.ranks)


def several(jobs):
    """Run the jobs and print what became of them on every rank."""
    from mpi4py import MPI

    ended = []
    for arguments in jobs:
        with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
            try:
                status = main(arguments)
            except SystemExit as exit_:
                status = exit_.code or 0
        ended.append(MPI.COMM_WORLD.gather([status, out.getvalue(), err.getvalue()]))
    if MPI.COMM_WORLD.rank == 0:
        print(json.dumps(ended))


if __name__ == "__main__":
    sys.exit(several(json.loads(sys.argv[2])) if sys.argv[1] == "several" else main(sys.argv[1:]))
