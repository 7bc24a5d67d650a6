"""Time several methods in turns; print medians, quartiles, minima and ratios to the first."""

from __future__ import annotations

import os
from collections.abc import Mapping

from mpi4py import MPI

from topocomm import Communicator
from topocomm.bench.libraries import Call
from topocomm.bench.timing import Pace, Timed, measure
from topocomm.execute.transports.mpi import library_name


def compare(comm: Communicator, title: str, ways: Mapping[str, Call], blocks: int) -> None:
    """Measure on all ranks; print on rank 0."""
    times = measure(comm, [Timed(run) for run in ways.values()], Pace(blocks, warmup=10))
    if comm.rank:
        return
    cores = len(os.sched_getaffinity(0))
    crowded = f"{cores} cores: they take turns" if comm.size > cores else f"{cores} cores"
    print(f"{title}, {comm.size} ranks on {crowded}, {library_name(MPI)}")
    print(f"{blocks} blocks in turns; us per call of the slowest rank")
    print(f"{'way':26} {'median':>10} {'q1':>10} {'q3':>10} {'least':>10} {'/ first':>8}")
    first_us = times[0].percentile_us(50)
    for name, one in zip(ways, times, strict=True):
        low, middle, high = (one.percentile_us(percent) for percent in (25, 50, 75))
        print(f"{name:26} {middle:10.1f} {low:10.1f} {high:10.1f} {min(one.us):10.1f} {middle / first_us:8.2f}")
