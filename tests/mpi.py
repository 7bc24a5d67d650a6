"""Starts real mpirun jobs from tests, of Open MPI or MPICH, whichever is beside the interpreter."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

HOW = ["shared", *(pytest.param(how, marks=pytest.mark.long) for how in ("messages", "two levels"))]
"""The ways that values of a job go."""
ENVIRONMENT = {
    # More ranks than cores, unbound, giving their core away while they wait; root may launch (containers).
    "PRTE_MCA_rmaps_default_mapping_policy": "slot:oversubscribe",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    # A rank's line goes out in one write: launchers pass on what they read, in pieces of several ranks.
    "PYTHONUNBUFFERED": "",
}


def mpirun(ranks, args, *, timeout_s=120.0, env=None, options=()):
    """The finished job `mpirun OPTIONS... -n RANKS python ARGS...`: text of stdout and stderr, and exit status.

    The interpreter is the one that runs the tests, mpirun the one beside it. A job that is not done in time is
    ended with all its ranks, and subprocess.TimeoutExpired is raised with what it had printed.
    """
    command = ["mpirun", *options, "-n", str(ranks), sys.executable, *map(str, args)]
    return finished(command, environment(**(env or {})), timeout_s)


def environment(**more):
    """The variables for a job: the mpirun beside the interpreter is found first."""
    path = str(Path(sys.executable).parent) + os.pathsep + os.environ["PATH"]
    return {**os.environ, **ENVIRONMENT, "PATH": path, **more}


def finished(command, environment, timeout_s, *, cwd=None):
    """A finished process: stdout and stderr as text and exit status; ended with its children if it takes too long."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes, env=environment, cwd=cwd, start_new_session=True) as process:
        try:
            stdout, stderr = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired as expired:
            process.terminate()  # mpirun ends its ranks when it is asked politely
            try:
                stdout, stderr = process.communicate(timeout=10)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                stdout, stderr = process.communicate()
            raise subprocess.TimeoutExpired(command, timeout_s, stdout, stderr) from expired
    return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)
