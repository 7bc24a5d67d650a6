"""Methods to merge one decode step that `decode.py` compares; each is a call that returns the step's output.

All but `ring` attend this rank's keys by the same kernel and differ in how partials are merged.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from mpi4py import MPI
from numpy.typing import NDArray

from attention import LOGSUMEXP, Partial, local_attention, ring_decode, three_allreduce_decode, tree_decode
from attention.bench import MaxAndPackedSum, ThreeAllreduces
from attention.kernels.cpu_merge import bind
from attention.merge.logsumexp import LSE, OUT
from topocomm import MAX, SUM, Communicator
from topocomm.bench.libraries import Call, MpiLibrary
from topocomm.bench.methods import Arrays

Way = Callable[[], torch.Tensor]
PEER = "ring_attention_pytorch"
"""Lucidrains' package; its `tree_attn_decode` is algorithm 3 of the paper over torch.distributed."""


class Step(NamedTuple):
    """One rank's part of a decode step: q [1, heads, 1, d], k and v [1, kv_heads, n, d]."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor

    @property
    def kv_bytes(self) -> int:
        """What must be read."""
        return self.k.nbytes + self.v.nbytes


class Merge(Protocol):
    """A way to merge float32 partials [rows, d], as `attention.bench` has them."""

    def prepare(self, x: Arrays, out: Arrays) -> bool:
        """Set up calls from x to out."""

    def run(self) -> None:
        """One merge."""


def our_ways(comm: Communicator) -> dict[str, Callable[[Step], Way]]:
    """Return constructors of the methods over topocomm's transport, by name; constructing is collective."""
    library = _AsLibrary(comm)
    return {
        "tree": lambda step: partial(tree_decode, *step, comm),
        "tree, set up by hand": lambda step: _merged(step, _OneReduction(comm)),
        "all-gather + merge": lambda step: _merged(step, _GatherAndMerge(comm)),
        "MAX + packed SUM": lambda step: _merged(step, MaxAndPackedSum(library)),
        "three all-reduces": lambda step: partial(three_allreduce_decode, *step, comm),
        "ring": lambda step: partial(ring_decode, *step, comm),
    }


def other_ways(library: MpiLibrary) -> dict[str, Callable[[Step], Way]]:
    """Return constructors of the methods without topocomm; the last one only if it is installed."""
    ways: dict[str, Callable[[Step], Way]] = {
        "three MPI_Allreduce": lambda step: _merged(step, ThreeAllreduces(library)),
    }
    if has_peer():
        ways[PEER] = _peers_way
    return ways


def has_peer() -> bool:
    """Return whether the peer's package is installed."""
    return find_spec(PEER) is not None


@contextmanager
def gloo(world: MPI.Comm) -> Iterator[None]:
    """Open the default group of torch.distributed, which the peer's function needs, if it is installed."""
    if not has_peer():
        yield
        return
    import torch.distributed as dist

    with tempfile.TemporaryDirectory() as own:
        path = Path(world.bcast(own)) / "store"
        dist.init_process_group("gloo", init_method=path.as_uri(), rank=world.rank, world_size=world.size)
        try:
            yield
        finally:
            world.Barrier()
            dist.destroy_process_group()
            world.Barrier()


class _AsLibrary:
    """topocomm's all-reduces with the interface of a library in `attention.bench`."""

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm

    def allreduce(self, send: NDArray[Any], receive: NDArray[Any], op: str) -> Call:
        """A prepared call on these arrays."""
        call = self._comm.prepare("allreduce", like=send, operator={"max": MAX, "sum": SUM}[op])
        return lambda: call(send, out=receive)


class _OneReduction:
    """The merge of tree, prepared like the other merges: without the checks of a public call."""

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm

    def prepare(self, x: Arrays, out: Arrays) -> bool:
        """As `Merge.prepare`."""
        self._x, self._out = dict(x), dict(out)
        self._call = self._comm.prepare("allreduce", like=self._x, operator=LOGSUMEXP)
        return True

    def run(self) -> None:
        """As `Merge.run`."""
        self._call(self._x, out=self._out)


class _GatherAndMerge:
    """One all-gather of packed (out, lse), and the fold of all partials on every rank."""

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm

    def prepare(self, x: Arrays, out: Arrays) -> bool:
        """As `Merge.prepare`."""
        size = self._comm.size
        self._out = out
        self._mine = {name: array[None] for name, array in x.items()}
        self._all = {name: np.empty((size, *array.shape), array.dtype) for name, array in x.items()}
        self._call = self._comm.prepare("allgather", like=self._mine)
        self._fold = bind([(self._all[OUT][rank], self._all[LSE][rank]) for rank in range(size)])
        return True

    def run(self) -> None:
        """As `Merge.run`."""
        self._call(self._mine, out=self._all)
        self._fold(self._out)


def _merged(step: Step, merge: Merge) -> Way:
    """Attend this rank's keys into the input arrays of `merge`."""
    q, k, v = step
    _, heads, _, d_v = shape = (*q.shape[:3], v.shape[3])
    x, out = ({OUT: np.empty((heads, d_v), np.float32), LSE: np.empty(heads, np.float32)} for _ in range(2))
    if not merge.prepare(x, out):
        raise RuntimeError(f"{type(merge).__name__} does not take {heads} x {d_v} float32")
    own = Partial(torch.from_numpy(x[OUT]).view(shape), torch.from_numpy(x[LSE]).view(shape[:3]))
    result = torch.from_numpy(out[OUT]).view(shape)

    def run() -> torch.Tensor:
        local_attention(q, k, v, out=own)
        merge.run()
        return result.to(q.dtype)

    return run


def _peers_way(step: Step) -> Way:
    """`tree_attn_decode` on shards. It has no grouped heads, so a key head's queries become its rows."""
    tree_attn_decode = import_module(f"{PEER}.tree_attn_decoding").tree_attn_decode
    q, k, v = step
    rows = q.view(1, k.shape[1], -1, q.shape[3])

    def run() -> torch.Tensor:
        out: torch.Tensor = tree_attn_decode(rows, k, v, shard_kv_seq=False)
        return out.view(q.shape)

    return run
