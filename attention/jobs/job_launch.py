"""Runs a job on its ranks: those of mpirun, or threads of this process; in host memory, or each on a GPU.

A job has three parts. `prepare` runs once per process and raises what is wrong with the input; then every rank runs
`work` with its communicator; then the process of rank 0 alone runs `report`, while the others sleep. Bad input is
said once, in one line, by the lowest rank that has something to say. Any other exception is shown with its rank
and ends the whole job at once.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from types import MappingProxyType
from typing import IO, TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar

import numpy as np

import topocomm
from topocomm import DeadlineError, MissingExtraError, TopocommError
from topocomm.command_parser import CommandParser, with_suggestion
from topocomm.extend import prepare_for_threads

if TYPE_CHECKING:
    import torch

    from topocomm import Communicator

OK, WORK_FAILED, BAD_INPUT = 0, 1, 2
LAST_RANK_LIMIT_S = 3600
"""Limit for rank 0, which may check its result for long after the others have finished."""
IDLE_SLICE_S = 0.05
CPU_MASK_BITS = 4096
LAUNCHERS = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),  # Open MPI
    ("PMI_RANK", "PMI_SIZE"),  # MPICH and its relatives
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),  # srun; a batch script itself is a step of one task
)

BEGAN_S = time.perf_counter()
"""When this process began, but for the start of Python itself."""

Result = TypeVar("Result")


MOST_THREADS = 1024
"""Ranks on threads: what `topocomm.run_local` takes."""


class InputError(TopocommError, ValueError):
    """The user gave something that the job cannot use; exit status 2."""


class SetupError(TopocommError, RuntimeError):
    """The machine lacks something that the job needs; exit status 1."""


class Job(Protocol[Result]):
    """What `run` runs."""

    name: str
    """The command, for messages."""

    def prepare(self, ranks: int) -> None:
        """Read and check the input, load what all ranks of this process share.

        Raises:
            TopocommError: An InputError for bad input, anything else for a lack of this machine.
        """

    def work(self, comm: Communicator, cpu_threads: int) -> Result:
        """Do one rank's work, with its share of the CPU threads."""

    def report(self, result: Result) -> int:
        """Return what to print in the end, from rank 0's result; returns the exit status."""


def run(job: Job[Result], ranks: int | None) -> int:
    """Run the job and return this process's exit status: 0 done, 1 the work failed, 2 bad input.

    `ranks` is how many threads to run on, from the command line; None is 1, or as many as mpirun started.
    """
    launched = launched_as()
    if launched is None:
        return _on_threads(job, 1 if ranks is None else ranks)
    return _under_mpi(job, ranks, *launched)


def launched_as() -> tuple[int, int] | None:
    """This process's rank and the number of ranks, as mpirun tells them; None without mpirun."""
    for rank, size in LAUNCHERS:
        if rank in os.environ and size in os.environ:
            return int(os.environ[rank]), int(os.environ[size])
    return None


class JobParser(CommandParser):
    """A parser that speaks once: the other ranks of an mpirun job leave in silence."""

    meanings = MappingProxyType(
        {"chat": "generate", "gpu": "cuda", "np": "--ranks", "run": "generate", "server": "serve"}
    )

    def error(self, message: str) -> NoReturn:
        """One line and exit status 2."""
        if speaks():
            say(f"{self.prog}: error: {message}")
        sys.exit(BAD_INPUT if speaks() else OK)

    def print_help(self, file: IO[str] | None = None) -> None:  # type: ignore[override]
        """The help, once."""
        if speaks():
            super().print_help(file)


def say(text: str) -> None:
    """Print a line on standard error."""
    print(text, file=sys.stderr, flush=True)


def positive(text: str) -> int:
    """Return an integer of at least 1, for argparse."""
    value = int(text) if text.strip().isdecimal() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return value


def tokens(text: str) -> int:
    """Return a number of tokens of at least 1, for argparse; 128K and 1M are 1024 and 1024 x 1024 times that."""
    unit = {"K": 1 << 10, "M": 1 << 20}.get(text[-1:].upper())
    count = text if unit is None else text[:-1]
    if not (count.strip().isdecimal() and int(count)):
        raise argparse.ArgumentTypeError(f"expected a number of tokens such as 65536, 64K or 1M, got {text!r}")
    return int(count) * (unit or 1)


def add_device(parser: argparse.ArgumentParser) -> None:
    """Add `--device` to a command."""
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu", help="cuda: each rank on a GPU, AMD's too (default cpu)"
    )


def check_device(device: str, ranks: int) -> None:
    """Refuse a device that this process does not have, and set what CUDA needs for ranks on threads.

    CUDA has not been started in this process.

    Raises:
        InputError: torch sees no GPU.
    """
    if device != "cuda":
        return
    import torch

    if ranks > 1 and launched_as() is None:
        prepare_for_threads()  # `is_available` may start CUDA, which reads it then
    if not torch.cuda.is_available():
        raise InputError("--device cuda: torch sees no GPU here; install torch for this machine's, or leave it out")


def device_of_rank(comm: Communicator, device: str, *, shared: bool = False) -> torch.device:
    """Return where this rank computes; a GPU is made current, with a stream of its own for a rank on a thread.

    On one stream, kernels of ranks that wait for each other would stand behind each other.

    Args:
        comm: The ranks: each has the GPU on which the topology places it, else they take the visible ones in turn.
        device: As `--device` says.
        shared: Ranks on threads all take the first GPU, since they share what lies there.
    """
    import torch

    if device == "cpu":
        return torch.device("cpu")
    index, on_threads = comm.gpu, launched_as() is None
    if index is None:
        index = 0 if shared and on_threads else comm.rank % torch.cuda.device_count()
    torch.cuda.set_device(index)
    if on_threads:
        torch.cuda.set_stream(torch.cuda.Stream(index))  # type: ignore[no-untyped-call]
    return torch.device("cuda", index)


def speaks() -> bool:
    """Return whether this process says what goes wrong: that of rank 0."""
    return (launched_as() or (0, 1))[0] == 0


def _on_threads(job: Job[Result], ranks: int) -> int:
    try:
        if ranks > MOST_THREADS:
            raise InputError(f"--ranks {ranks}: expected 1 to {MOST_THREADS} threads; mpirun starts more")
        job.prepare(ranks)
    except TopocommError as error:
        return _say_error(job, error)
    cpu_threads = max(1, len(os.sched_getaffinity(0)) // ranks)
    try:
        results = topocomm.run_local(lambda comm: job.work(comm, cpu_threads), ranks=ranks)
    except TopocommError as error:
        return _say_setting(job, error)
    except MemoryError as error:
        return _say_error(job, InputError(f"{error}; a shorter context, or ranks on more hosts, need less of each"))
    return job.report(results[0])


def _under_mpi(job: Job[Result], ranks: int | None, rank: int, size: int) -> int:
    try:
        world = _world(ranks, size)
    except TopocommError as error:
        return _say_error(job, error) if rank == 0 else OK
    try:
        comm = topocomm.Communicator.from_mpi(world)  # from here on an uncaught exception ends the whole job
    except TopocommError as error:
        return _say_setting(job, error, rank)
    problem: TopocommError | None = None
    try:
        job.prepare(size)
    except TopocommError as error:
        problem = error
    statuses = [int(status[0]) for status in comm.allgather_bytes(np.array([_status(problem)], np.uint8))]
    if any(statuses):
        first = next(other for other, status in enumerate(statuses) if status)
        return _say_error(job, problem, rank) if problem is not None and rank == first else OK
    result = job.work(comm, _cpu_threads(world))
    comm.close()
    status = job.report(result) if rank == 0 else OK
    if comm.session.gone:  # the others of the world would be waited for in vain
        return status
    # MPI_Finalize would wait for the others as well, but wakes up thousands of times a second to look.
    request = world.Ibarrier()
    until_s = time.monotonic() + LAST_RANK_LIMIT_S
    while not request.Test():
        if time.monotonic() > until_s:
            raise DeadlineError(f"rank {world.rank}: other ranks still work {LAST_RANK_LIMIT_S} s after this one")
        time.sleep(IDLE_SLICE_S)
    return status


def _world(ranks: int | None, size: int) -> Any:
    """MPI.COMM_WORLD, checked against the launcher and the command line."""
    try:
        from mpi4py import MPI
    except ImportError as error:
        raise MissingExtraError("mpirun -n P python -m attention", "mpi4py", "mpi") from error
    world = MPI.COMM_WORLD
    if world.size != size:
        raise SetupError(
            f"mpirun started {size} ranks, but the MPI library that mpi4py loaded sees {world.size}: "
            "they are of two MPI installations; put the bin directory of mpi4py's MPI first in PATH"
        )
    if ranks is not None and ranks != size:
        raise InputError(f"--ranks {ranks} contradicts mpirun, which started {size}; leave --ranks out under mpirun")
    return world


def _cpu_threads(world: Any) -> int:
    """This rank's share of the cores that it may run on: the ranks whose cores overlap with them share them."""
    from mpi4py import MPI

    local = world.Split_type(MPI.COMM_TYPE_SHARED)
    own = np.zeros(CPU_MASK_BITS, np.uint8)
    own[list(os.sched_getaffinity(0))] = 1
    masks = np.empty((local.size, CPU_MASK_BITS), np.uint8)
    local.Allgather(own, masks)
    local.Free()
    sharers = int((masks & own).any(axis=1).sum())
    return max(1, int(own.sum()) // sharers)


def _status(error: TopocommError | None) -> int:
    if error is None:
        return OK
    return BAD_INPUT if isinstance(error, InputError) else WORK_FAILED


def _say_setting(job: Job[Result], error: TopocommError, rank: int = 0) -> int:
    """Say, on rank 0, that the environment makes a communicator impossible; anything else is raised again."""
    if type(error) is not TopocommError:
        raise error
    if rank == 0:
        say(f"{job.name}: error: {error}")
    return OK if rank else BAD_INPUT


def _say_error(job: Job[Result], error: TopocommError, rank: int = 0) -> int:
    who = f"rank {rank}: " if rank else ""
    say(f"{job.name}: error: {who}{with_suggestion(str(error))}")
    return _status(error)
