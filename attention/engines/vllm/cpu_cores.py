"""Cores for the threads of our kernels in a worker whose OpenMP threads vLLM bound to one core each."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

SETTINGS = ("GOMP_CPU_AFFINITY", "KMP_AFFINITY", "OMP_PLACES")
"""Environment variables in which vLLM lists the cores of a worker, one of them by the OpenMP library in use."""


class WorkerCores:
    """Lets threads that start in a `with` block use all cores of the worker.

    OpenMP binds a process's first thread to the first core. The kernels' threads are not OpenMP's, and start where the
    thread that calls them may run: on that one core, if nothing were done. After the block it is bound as before, since
    its part of OpenMP's work belongs there. Where nothing was bound, or no system call binds, nothing is done.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Take the cores that the environment lists and this thread may use; call it in the thread of the blocks."""
        self._own: set[int] = set()
        self._all: set[int] = set()
        if not hasattr(os, "sched_setaffinity"):
            return
        own, listed = os.sched_getaffinity(0), listed_cores(environment)
        if own < listed:
            self._own, self._all = own, listed

    def __enter__(self) -> None:
        """Allow all cores."""
        if self._all:
            os.sched_setaffinity(0, self._all)

    def __exit__(self, *error: object) -> None:
        """Bind as before."""
        if self._all:
            os.sched_setaffinity(0, self._own)


def listed_cores(environment: Mapping[str, str]) -> set[int]:
    """Return the cores of the first of `SETTINGS` that is there, written as vLLM does; empty: none is."""
    for name in SETTINGS:
        if environment.get(name):
            listed = re.fullmatch(r"(?:granularity=fine,explicit,proclist=)?[\[{]?([\d ,]+)[\]}]?", environment[name])
            return set(map(int, re.findall(r"\d+", listed[1]))) if listed else set()
    return set()
