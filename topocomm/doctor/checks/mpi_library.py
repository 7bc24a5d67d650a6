"""The MPI library that mpi4py loads, found in a child process, since a broken one hangs or ends its process."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import NamedTuple

from topocomm.doctor.finding import Environment

TIMEOUT_S = 20.0
"""Time limit of the child: loading takes 0.1 s, longer on a file system that many ranks use at once."""
PROGRAM = """
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
print("library:", " ".join(MPI.Get_library_version().strip("\\0 \\n").splitlines()[0].split(",")[0].split()))
"""


class MpiLibrary(NamedTuple):
    """Name and version up to the first comma, or None and the error."""

    name: str | None
    trouble: str = ""


def ask_mpi_library(environment: Environment | None = None, timeout_s: float = TIMEOUT_S) -> MpiLibrary:
    """Return the library that mpi4py loads, without initialising it."""
    command = [sys.executable, "-c", PROGRAM]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=timeout_s,
            env=None if environment is None else dict(environment),
            check=False,
        )
    except subprocess.TimeoutExpired:
        return MpiLibrary(None, f"loading MPI takes longer than {timeout_s:g} s")
    except OSError as error:
        return MpiLibrary(None, f"no child process can be started: {error.strerror}")
    said = done.stdout.decode("utf-8", "replace").splitlines()
    names = [line.removeprefix("library: ") for line in said if line.startswith("library: ")]
    if names and done.returncode == 0:
        return MpiLibrary(names[-1])
    if done.returncode < 0:
        return MpiLibrary(None, f"loading MPI ends the process: {_signal(-done.returncode)}")
    last = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
    return MpiLibrary(None, f"finds no MPI library: {last[0][:200]}" if last else "finds no MPI library")


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
