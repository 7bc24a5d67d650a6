"""The collectives that merge the ranks' partials: one class a kind, planned once, used by every step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import torch

from attention.arrays import Inputs, empty_partial
from attention.cache.shards import ShardMap
from attention.decode.canonical import canonical_partials
from attention.decode.communicators import CachedCalls, cached_call, calls_of, prepared_call, stream_order_of
from attention.decode.sharded import ShardedCall, part_of
from attention.decode.verification import Verification
from attention.gpu.placement import on_gpu
from attention.local.dispatch import attend
from attention.merge.logsumexp import LOGSUMEXP, LSE, OUT
from attention.partial import Partial
from attention.ring.ring_buffers import fold
from topocomm import Communicator, OperatorError, PreparedCall


class Reduction(ABC):
    """How the partials of one kind of step are merged; making one is collective at the first use of a shape.

    Attributes:
        shape: Of all heads: [batch, heads, q_len, d_v].
    """

    def __init__(self, comm: Communicator, inputs: Inputs) -> None:
        """Plan for inputs of this kind, with any number of keys."""
        self.comm, self.shape, self.device = comm, inputs.out_shape, inputs.q.device
        self.on_gpu = on_gpu(inputs.q)

    @abstractmethod
    def merge(self, call: ShardedCall, watch: Verification | None) -> Partial:
        """Attend this rank's keys and merge; float32, this rank's heads. Collective."""


class AllReduce(Reduction):
    """All heads by one all-reduce with LOGSUMEXP."""

    def __init__(self, comm: Communicator, inputs: Inputs) -> None:
        super().__init__(comm, inputs)
        self._key = (self.shape, self.device if self.on_gpu else None)
        self._calls = calls_of(comm)
        self._call, self._dropped = cached_call(comm, self._key, self._prepare), self._calls.dropped

    def call(self) -> PreparedCall:
        """Return the prepared all-reduce; planned again, on all ranks alike, if it was freed for others."""
        if self._calls.dropped != self._dropped:
            self._call, self._dropped = cached_call(self.comm, self._key, self._prepare), self._calls.dropped
        return self._call

    def planned(self) -> tuple[PreparedCall, CachedCalls, int]:
        """Return the same, all calls of the communicator, and their `dropped` up to which it stays."""
        return self.call(), self._calls, self._dropped

    def _prepare(self) -> PreparedCall:
        return self.comm.prepare("allreduce", like=self.empty(), operator=LOGSUMEXP)

    def empty(self) -> dict[str, Any]:
        """Uninitialised out and lse; of NumPy in host memory, since so the compiled reduction is entered at once."""
        if self.on_gpu:
            return empty_partial(self.shape, self.device)._asdict()
        return {OUT: np.empty(self.shape, np.float32), LSE: np.empty(self.shape[:3], np.float32)}

    def merge(self, call: ShardedCall, watch: Verification | None) -> Partial:
        """As `Reduction.merge`; the partial is written into the send buffer where the payload is sent whole."""
        reduction = self.call()
        sent = self.empty() if reduction.input is None else reduction.input
        partial = as_tensors(sent)
        stream_order_of(self.comm).acquire(self.device, reduction)
        attend(call.inputs, partial)
        if watch is not None:
            watch.note(partial.lse)
        merged = None if call.target is None else call.empty()._asdict()
        if merged is not None and not self.on_gpu:
            merged = {name: x.numpy() for name, x in merged.items()}
        return as_tensors(reduction(sent, out=merged))


class ReduceScatter(Reduction):
    """This rank's heads by one reduce-scatter, whose rows are heads."""

    def __init__(self, comm: Communicator, inputs: Inputs) -> None:
        super().__init__(comm, inputs)
        parts = [part_of(self.shape[1], comm.size, rank) for rank in range(comm.size)]
        self._rows = tuple(part.stop - part.start for part in parts)
        self._call(self._empty())

    def _empty(self) -> dict[str, torch.Tensor]:
        batch, heads, q_len, d_v = self.shape
        return empty_partial((heads, batch, q_len, d_v), self.device)._asdict()

    def _call(self, by_heads: dict[str, torch.Tensor]) -> PreparedCall:
        return prepared_call(self.comm, "reduce_scatter", by_heads, LOGSUMEXP, rows=self._rows)

    def merge(self, call: ShardedCall, watch: Verification | None) -> Partial:
        """As `Reduction.merge`."""
        by_heads = self._empty()
        reduction = self._call(by_heads)
        if self.on_gpu:
            stream_order_of(self.comm).acquire(self.device, reduction)
            by_heads = by_heads if reduction.input is None else reduction.input
        attend(call.inputs, Partial(*(by_heads[name].transpose(0, 1) for name in (OUT, LSE))))
        if watch is not None:
            watch.note(by_heads[LSE].transpose(0, 1))
        merged = reduction(by_heads)
        return Partial(*(merged[name].transpose(0, 1).contiguous() for name in (OUT, LSE)))


class SixteenBitGather(Reduction):
    """Partials rounded to bfloat16 go to all ranks, which fold them alike.

    So a kernel that rounds its out to bfloat16 loses nothing more, and only here other libraries attend shards:
    wire="float32" is for partials that nothing has rounded.
    """

    def __init__(self, comm: Communicator, inputs: Inputs, *, exact: bool) -> None:
        """As `Reduction`; `exact` as `local.dispatch.attend`."""
        super().__init__(comm, inputs)
        self._exact = exact
        self._call(_rounded(inputs.empty_partial()))

    def _call(self, sent: dict[str, torch.Tensor]) -> PreparedCall:
        return prepared_call(self.comm, "allgather", sent)

    def merge(self, call: ShardedCall, watch: Verification | None) -> Partial:
        """As `Reduction.merge`."""
        partial = call.inputs.empty_partial()
        attend(call.inputs, partial, exact=self._exact)
        if watch is not None:
            watch.note(partial.lse)
        sent = _rounded(partial)
        gather = self._call(sent)
        stream_order_of(self.comm).acquire(self.device, gather)
        gathered = gather(sent)
        return _own_heads(call, fold(gathered[OUT], gathered[LSE]))


class CanonicalReduce(Reduction):
    """One partial per virtual shard, merged by the tree over all virtual shards."""

    def __init__(self, comm: Communicator, inputs: Inputs, shards: ShardMap) -> None:
        """As `Reduction`.

        Raises:
            OperatorError: The map is for another number of ranks.
        """
        super().__init__(comm, inputs)
        if shards.ranks != comm.size:
            raise OperatorError(f"tree_decode: shards are for {shards.ranks} ranks, the communicator has {comm.size}")
        self._shards, self._range = shards, shards.virtual_range(comm.rank)
        first, stop = self._range
        self._call(empty_partial((stop - first, *self.shape), self.device)._asdict())

    def _call(self, parts: dict[str, torch.Tensor]) -> PreparedCall:
        return prepared_call(self.comm, "allreduce", parts, LOGSUMEXP, order="canonical", shards=self._range)

    def merge(self, call: ShardedCall, watch: Verification | None) -> Partial:
        """As `Reduction.merge`."""
        positions = call.options.masking.kv_positions
        parts = canonical_partials(call.inputs, self.comm, self._shards, positions)._asdict()
        if watch is not None:
            watch.note(torch.logsumexp(parts[LSE], 0))
        return _own_heads(call, Partial(**self._call(parts)(parts)))


def as_tensors(partial: dict[str, Any]) -> Partial:
    """Return a partial of NumPy or torch arrays as tensors on the same memory."""
    out, lse = partial[OUT], partial[LSE]
    return Partial(torch.from_numpy(out), torch.from_numpy(lse)) if isinstance(out, np.ndarray) else Partial(out, lse)


def _rounded(partial: Partial) -> dict[str, torch.Tensor]:
    return {OUT: partial.out.bfloat16()[None], LSE: partial.lse[None]}


def _own_heads(call: ShardedCall, whole: Partial) -> Partial:
    return Partial(*(x[:, call.heads].contiguous() for x in whole))
