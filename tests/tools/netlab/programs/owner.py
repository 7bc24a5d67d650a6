"""Run by test_lab: makes a lab, starts a job in it, says where, and waits to be killed."""

import sys
import time

from tools.netlab.lab import Lab
from tools.netlab.network import racks

with Lab(racks(2, 1, 100.0)) as lab:
    job = lab.start(["python", "-c", "import time; from mpi4py import MPI; time.sleep(300)"])
    while job.process.poll() is None and "python" not in lab.run("host1", ["sh", "-c", "cat /proc/[0-9]*/comm"]):
        time.sleep(0.05)
    print(lab.directory, *lab.processes.values(), flush=True)
    time.sleep(300)
sys.exit(1)
