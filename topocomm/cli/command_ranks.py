"""The ranks that a command runs on: a launcher's, or threads of this process."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from topocomm.execute.communicator import Communicator

LAUNCHERS = (
    ("torchrun", "RANK", "WORLD_SIZE"),
    ("mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("mpiexec", "PMI_RANK", "PMI_SIZE"),
    ("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)
"""(name, variable of a process's rank, variable of the number of ranks)."""

Result = TypeVar("Result")


def launched_as(environment: Mapping[str, str] = os.environ) -> tuple[str, int, int] | None:
    """Return the launcher of this process, its rank and the number of ranks; None without a launcher."""
    for name, rank, size in LAUNCHERS:
        numbers = environment.get(rank, ""), environment.get(size, "")
        if all(number.isdecimal() for number in numbers):
            return name, int(numbers[0]), int(numbers[1])
    return None


def speaks() -> bool:
    """Return whether this process prints: rank 0, or a process without a launcher."""
    launched = launched_as()
    return launched is None or launched[1] == 0


def run_on_ranks(work: Callable[[Communicator], Result], ranks: int) -> Result:
    """Run `work` on all ranks and return this process's result; without a launcher, rank 0's of `ranks` threads."""
    from topocomm.execute.start import init, run_local

    if launched_as() is None:
        return run_local(work, ranks=ranks)[0]
    with init() as comm:
        return work(comm)
