"""Libraries to compare with: the interface, MPI and torch.distributed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topocomm.bench.problem import ROOT
from topocomm.execute.transports.mpi import load_mpi

Call = Callable[[], object]


class Library(ABC):
    """Another library's collectives on NumPy arrays, between the same ranks over the same links.

    A method prepares a call and returns a function that runs it, or None if the library has no such call. `send` and
    `receive` may be one array: the call is then in place.
    """

    rank: int
    size: int
    name: str
    """Name of the library in row names: MPI, gloo."""

    @abstractmethod
    def collective(self, name: str, send: NDArray[Any], receive: NDArray[Any], op: str | None) -> Call | None:
        """Prepare a collective by its topocomm name; `op` names the operator of a reduction; root 0."""

    @abstractmethod
    def title(self, collective: str) -> str:
        """Return the name of the library's own function."""

    def allreduce(self, send: NDArray[Any], receive: NDArray[Any], op: str) -> Call | None:
        """Prepare an allreduce with sum, prod, max, min, band, bor or bxor."""
        return self.collective("allreduce", send, receive, op)

    def allgather(self, send: NDArray[Any], receive: NDArray[Any]) -> Call | None:
        """Prepare an all-gather; `receive` is [ranks, *send.shape]."""
        return self.collective("allgather", send, receive, None)

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Release the library's resources; collective."""


class MpiLibrary(Library):
    """Blocking MPI collectives on buffers, on a duplicate of the mpi4py intracommunicator given; collective."""

    def __init__(self, comm: Any) -> None:
        self.mpi = load_mpi()
        self.comm = comm.Dup()
        self.rank, self.size, self.name = comm.rank, comm.size, "MPI"
        mpi = self.mpi
        self._ops = {op.lower(): getattr(mpi, op) for op in ("SUM", "PROD", "MAX", "MIN", "BAND", "BOR", "BXOR")}

    def title(self, collective: str) -> str:
        return {"broadcast": "MPI_Bcast", "reduce_scatter": "MPI_Reduce_scatter_block"}.get(
            collective, f"MPI_{collective.capitalize()}"
        )

    def collective(self, name: str, send: NDArray[Any], receive: NDArray[Any], op: str | None) -> Call | None:
        if op is not None and op not in self._ops:
            return None
        return self.call(name, send, receive, None if op is None else self._ops[op])

    def call(self, name: str, send: Any, receive: Any, op: Any) -> Call:
        """Prepare a call with any MPI operator on any buffers; in place if `send` is `receive`."""
        comm, mpi = self.comm, self.mpi
        given = mpi.IN_PLACE if send is receive else send
        if name == "broadcast":
            return partial(comm.Bcast, send if self.rank == ROOT else receive, ROOT)
        if name in ("allgather", "alltoall"):
            return partial(comm.Allgather if name == "allgather" else comm.Alltoall, given, receive)
        if name == "gather":
            return partial(comm.Gather, send, receive if self.rank == ROOT else None, ROOT)
        if name == "scatter":
            return partial(comm.Scatter, send if self.rank == ROOT else None, receive, ROOT)
        if name == "reduce":
            if self.rank == ROOT:
                return partial(comm.Reduce, given, receive, op, ROOT)
            return partial(comm.Reduce, send, None, op, ROOT)
        if name == "reduce_scatter":
            count = len(receive) if isinstance(receive, np.ndarray) else receive[1]
            first = [send, count] if isinstance(send, np.ndarray) else [send[0], count, send[2]]
            return partial(comm.Reduce_scatter_block, first, receive, op)
        function = {"allreduce": comm.Allreduce, "scan": comm.Scan, "exscan": comm.Exscan}
        return partial(function[name], given, receive, op)

    def close(self) -> None:
        self.comm.Free()


class TorchLibrary(Library):
    """torch.distributed's collectives on CPU tensors of the default process group."""

    def __init__(self) -> None:
        import torch.distributed as dist

        self.dist: Any = dist
        self.rank, self.size, self.name = dist.get_rank(), dist.get_world_size(), str(dist.get_backend())

    def title(self, collective: str) -> str:
        names = {"allreduce": "all_reduce", "allgather": "all_gather"}
        return f"{self.name} {names.get(collective, collective)}"

    def collective(self, name: str, send: NDArray[Any], receive: NDArray[Any], op: str | None) -> Call | None:
        """Torch reduces in place, so the value is copied first."""
        import torch

        dist = self.dist
        source, target = torch.from_numpy(send), torch.from_numpy(receive)
        if name == "allgather":
            gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # its name before 2.13
            return partial(gather, target.reshape(-1), source.reshape(-1))
        if name == "broadcast":
            return partial(dist.broadcast, source if self.rank == ROOT else target, ROOT)
        if name == "alltoall":
            return partial(dist.all_to_all_single, target, source)
        if name == "gather":
            parts = list(target.reshape(-1).chunk(self.size)) if self.rank == ROOT else None
            return partial(dist.gather, source.reshape(-1), parts, ROOT)
        if name == "scatter":
            parts = list(source.reshape(-1).chunk(self.size)) if self.rank == ROOT else None
            return partial(dist.scatter, target.reshape(-1), parts, ROOT)
        if name not in ("allreduce", "reduce") or op not in ("sum", "prod", "max", "min", "band", "bor", "bxor"):
            return None
        word = getattr(dist.ReduceOp, "PRODUCT" if op == "prod" else op.upper())
        reduce = partial(dist.all_reduce, target, word) if name == "allreduce" else None
        reduce = reduce or partial(dist.reduce, target, ROOT, word)
        if send is receive:
            return reduce

        def copied() -> None:
            target.copy_(source)
            reduce()

        return copied
