"""Measurements in fresh processes, which share no plan, import or memory with earlier ones."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any, NamedTuple, TypeVar

from topocomm import PlanError

Made = TypeVar("Made")
MOST_BYTES = 6 << 30
"""Limit of address space, in bytes, above what any plan needs; protects the machine from runaway plans."""


class Took(NamedTuple):
    """Costs of a call: wall seconds, CPU seconds, peak MiB of its process."""

    wall_s: float
    cpu_s: float
    peak_mib: float


def timed(make: Callable[[], Made]) -> tuple[Made, Took]:
    """Return a call's result and its costs."""
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    made = make()
    wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
    return made, Took(wall_s, cpu_s, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def each_alone(measure: Callable[..., Made], jobs: Iterable[tuple[Any, ...]]) -> Iterator[Made | str]:
    """`measure(*job)` of every job, one after the other, each in a new process; where there is no plan, why, in words.

    Args:
        measure: What is called.
        jobs: Arguments of the calls; of each the first names it where it fails.
    """
    context = get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, max_tasks_per_child=1, initializer=_limited) as pool:
        waiting = [(job, pool.submit(measure, *job)) for job in jobs]
        for job, result in waiting:
            try:
                yield result.result()
            except (PlanError, MemoryError) as error:
                yield f"{job[0]}: no plan: {error or f'more than {MOST_BYTES >> 30} GiB'}"


def _limited() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
