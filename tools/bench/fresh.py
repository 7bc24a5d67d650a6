"""Measurements in processes of their own: nothing that an earlier one planned, imported or allocated is used again."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any, NamedTuple, TypeVar

Made = TypeVar("Made")


class Took(NamedTuple):
    """What a call took: seconds on the clock, seconds of processors, most MiB that its process had in memory."""

    wall_s: float
    cpu_s: float
    peak_mib: float


def timed(make: Callable[[], Made]) -> tuple[Made, Took]:
    """What a call returns, and what it took."""
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    made = make()
    wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
    return made, Took(wall_s, cpu_s, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def each_alone(measure: Callable[..., Made], jobs: Iterable[tuple[Any, ...]]) -> Iterator[Made]:
    """`measure(*job)` of every job, one after the other, each in a new process."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        for waiting in [pool.submit(measure, *job) for job in jobs]:
            yield waiting.result()
