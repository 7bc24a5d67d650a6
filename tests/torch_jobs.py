"""Jobs of several ranks that meet through torch.distributed: by torchrun, or one by one; and traffic of their own."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

from tests.mpi import finished

ROOT = Path(__file__).parents[1]
FAULTS = ROOT / "tests/execute/torch_programs/faults.py"
LAUNCHER_VARIABLES = re.compile(r"OMPI_|PMIX?_|SLURM_|TORCHELASTIC_|RANK$|WORLD_SIZE$|MASTER_")


def environment(**more):
    """That of a fresh shell, without what launchers set, and with this tree's packages."""
    clean = {name: value for name, value in os.environ.items() if not LAUNCHER_VARIABLES.match(name)}
    # Two threads of torch per rank would crowd the small machines that tests run on.
    return {**clean, "PYTHONUNBUFFERED": "", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **more}


def torchrun(ranks, args, *, timeout_s=60.0, env=None):
    """The finished job `torchrun --nproc-per-node RANKS python ARGS...`."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    return finished([*command, *map(str, args)], environment(**(env or {})), timeout_s)


def by_hand(ranks, args, *, timeout_s=60.0, env=None):
    """RANKS processes without anyone who ends the others when one dies: (stdout, stderr, exit status) of each.

    All are killed at the time limit, and then their output so far is returned.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    base = environment(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE=str(ranks), **(env or {}))
    processes = [
        subprocess.Popen(
            [sys.executable, *map(str, args)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**base, "RANK": str(rank)},
        )
        for rank in range(ranks)
    ]
    found = []
    for process in reversed(processes):
        try:
            output = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            for other in processes:
                with contextlib.suppress(ProcessLookupError):
                    other.send_signal(signal.SIGKILL)
            output = process.communicate()
        found.append((*output, process.returncode))
    return found[::-1]


def faults(*args):
    """What each rank was told, by (rank, what it did), and the exit statuses."""
    jobs = by_hand(3, [FAULTS, *args])
    told = {}
    for rank, (stdout, stderr, _) in enumerate(jobs):
        assert "terminate called" not in stderr  # a thread that outlived the interpreter
        for line in stdout.splitlines():
            told.setdefault(rank, []).append(line.removeprefix(f"[{rank}] "))
    return told, [status for _, _, status in jobs]


def said(text):
    """What each rank printed as `[rank] text`, by rank; with its newline in one string, or another may come between."""
    return {int(rank): line for rank, line in re.findall(r"^\[(\d+)\] (.*)$", text, re.MULTILINE)}


def round_trip():
    """The program's own traffic on the default group, from each rank to the next.

    No collective: gloo's threads drop what one has used some time after it is over, and abort a process that ends then.
    """
    import torch
    import torch.distributed as dist

    me, size = dist.get_rank(), dist.get_world_size()
    found = torch.empty(1)
    sent = dist.isend(torch.full((1,), float(me)), (me + 1) % size)
    dist.recv(found, (me - 1) % size)
    sent.wait()
    assert found.item() == (me - 1) % size
