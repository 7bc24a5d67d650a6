"""The trips of keys and values around the ring: forward to attend, backward with the sums of their gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from attention import gpu
from attention.arrays import Inputs, empty_partial
from attention.gpu.loading import load_together
from attention.gpu.placement import on_gpu
from attention.local.dispatch import attend
from attention.merge.merge_states import fold_on_host
from attention.partial import Partial, add_sinks
from attention.ring.backward import backward_block
from attention.ring.ring_buffers import Scratch, Shard, ShardBuffers
from attention.ring.ring_layout import Parts
from topocomm import Communicator


class Block(NamedTuple):
    """One step of the computation: some of this rank's queries, some of a shard's keys, and these alone as inputs."""

    rows: slice
    part: slice
    inputs: Inputs


class HostMerge:
    """The result of a rank's queries while blocks of keys are attended, piece of queries by piece; in host memory."""

    def __init__(self, inputs: Inputs, pieces: list[slice]) -> None:
        batch, heads, _, d_v = inputs.out_shape
        self._whole, self._running = inputs.empty_partial(), {}
        for rows in pieces:
            shape = (batch, heads, rows.stop - rows.start, d_v)
            merged, arriving = (empty_partial(shape, inputs.q.device) for _ in range(2))
            merged.out.zero_()
            merged.lse.fill_(-torch.inf)
            self._running[rows.start] = rows, merged, arriving

    def add(self, block: Block, between: Callable[[], None] | None) -> None:
        """Attend a block and merge it; messages move in `between`."""
        _, merged, arriving = self._running[block.rows.start]
        attend(block.inputs, arriving, between=between)
        fold_on_host([merged.out, arriving.out], [merged.lse, arriving.lse], merged)

    def result(self) -> Partial:
        """Return the partial of all queries."""
        for rows, merged, _ in self._running.values():
            for target, x in zip(self._whole, merged, strict=True):
                target[:, :, rows].copy_(x)
        return self._whole


class DeviceMerge:
    """As `HostMerge` on a GPU: the kernel that attends a block merges it. No row is left out: it sees its own key."""

    def __init__(self, inputs: Inputs) -> None:
        self._whole = inputs.empty_partial()
        self._begun: set[int] = set()

    def add(self, block: Block, between: Callable[[], None] | None) -> None:
        """As `HostMerge.add`."""
        running = Partial(*(x[:, :, block.rows] for x in self._whole))
        gpu.attend_onto(block.inputs, running, first=block.rows.start not in self._begun)
        self._begun.add(block.rows.start)
        if between is not None:
            between()

    def result(self) -> Partial:
        """As `HostMerge.result`."""
        return self._whole


class Trips:
    """What stays prepared between the calls of one communicator."""

    def __init__(self, comm: Communicator) -> None:
        self.comm = comm
        self._buffers = ShardBuffers(comm)
        self._sums = Scratch(), Scratch()
        self._shifts: dict[int, Any] = {}
        """By number of messages."""

    def forward(self, inputs: Inputs, parts: Parts) -> Partial:
        """Return the float32 result for this rank's queries; collective."""
        rank, size = self.comm.rank, self.comm.size
        if on_gpu(inputs.q):
            kind = ("ring_attention", inputs.q.shape[:2], *parts.sizes, inputs.q.dtype, inputs.spec)
            load_together(self.comm, kind, inputs, lambda: self._load(inputs, parts))
            merge: HostMerge | DeviceMerge = DeviceMerge(inputs)
        else:
            merge = HostMerge(inputs, parts.pieces[rank])
        shards = self._buffers.in_turn(inputs, None, parts.sizes)
        for hop, shard in enumerate(shards):
            shift = None
            if hop < size - 1:
                shift = self._shift(2)
                shift.start(shard.buffers, shards[hop + 1].buffers)
            for block in _blocks(inputs, parts, shard, (rank - hop) % size):
                merge.add(block, shift and shift.advance)
            if shift is not None:
                shift.wait()
        whole = merge.result()
        return whole if inputs.spec.sinks is None else add_sinks(whole, inputs.spec.sinks)

    def _load(self, inputs: Inputs, parts: Parts) -> None:
        """Run the kernel once for every form of block, on this rank's keys in place of those of a shard as long."""
        own, forms, merge = Shard(inputs.k, inputs.v, None), set(), DeviceMerge(inputs)
        for source, n in enumerate(parts.sizes):
            if n != parts.sizes[self.comm.rank]:
                continue
            for block in _blocks(inputs, parts, own, source):
                form = block.rows.stop - block.rows.start, block.inputs.visibility is None
                if form not in forms:
                    forms.add(form)
                    running = Partial(*(x[:, :, block.rows] for x in merge.result()))
                    for first in (True, False):
                        gpu.attend_onto(block.inputs, running, first=first)

    def backward(
        self, inputs: Inputs, parts: Parts, result: Partial, arriving: Partial
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return float32 (dq, dk, dv) of this rank's tokens; collective.

        Step h computes with the shard of rank - h. Meanwhile the next shard arrives, and so do the gradients that the
        ranks before have summed up for the current one; after P steps those of this rank's own shard arrive.
        `result` is what forward returned, `arriving` the gradients of out and of lse; that of lse may be None.
        """
        rank, size = self.comm.rank, self.comm.size
        dq = inputs.q.new_zeros(inputs.q.shape, dtype=torch.float32)
        shards = self._buffers.in_turn(inputs, None, parts.sizes)
        nothing = Shard(dq.new_empty(0), dq.new_empty(0), None)  # so that each step exchanges as many messages
        summed = nothing  # gradients for the shard of the step before
        for step in range(size + 1 if size > 1 else 1):
            shift, coming = None, nothing
            if size > 1:
                shift = self._shift(4)
                coming = nothing if step == 0 else self._coming(inputs, parts, step)
                leaving, next_one = shards[step : step + 2] if step < size - 1 else (nothing, nothing)
                shift.start(leaving.buffers + summed.buffers, next_one.buffers + coming.buffers)
            own = nothing
            if step < size:
                blocks = _blocks(inputs, parts, shards[step], (rank - step) % size)
                own = _contribution(shards[step], blocks, (result, arriving), dq, shift and shift.advance)
            if shift is not None:
                shift.wait()
            if step == 0:
                summed = own
            else:
                if step < size:
                    coming.k.add_(own.k)
                    coming.v.add_(own.v)
                summed = coming
        return dq, summed.k, summed.v

    def _coming(self, inputs: Inputs, parts: Parts, step: int) -> Shard:
        """Where the gradients of the current shard arrive; in the last step new memory, which the caller gets."""
        size, scratch = self.comm.size, self._sums[step % 2]
        n = parts.sizes[(self.comm.rank - step) % size]
        shapes = [(*x.shape[:2], n, x.shape[3]) for x in (inputs.k, inputs.v)]
        if step == size:
            dk, dv = (inputs.k.new_empty(shape, dtype=torch.float32) for shape in shapes)
        else:
            dk, dv = (
                scratch.view(x, shape, inputs.k.device, torch.float32) for x, shape in zip("kv", shapes, strict=True)
            )
        return Shard(dk, dv, None)

    def _shift(self, messages: int) -> Any:
        """The exchange of this many messages with both neighbours; collective at first use."""
        if messages not in self._shifts:
            self._shifts[messages] = self.comm.prepare_shift(messages)
        return self._shifts[messages]


def _blocks(inputs: Inputs, parts: Parts, shard: Shard, source: int) -> list[Block]:
    """What this rank computes with the shard of rank `source`."""
    return [
        Block(
            rows,
            part,
            replace(
                inputs, q=inputs.q[:, :, rows], k=shard.k[:, :, part], v=shard.v[:, :, part], visibility=visibility
            ),
        )
        for rows, part, visibility in parts.blocks(source)
    ]


def _contribution(
    shard: Shard,
    blocks: list[Block],
    results: tuple[Partial, Partial],
    dq: torch.Tensor,
    between: Callable[[], None] | None,
) -> Shard:
    """What this rank's queries add to the gradients of a shard, float32; their own are added to dq."""
    (out, lse), (d_out, d_lse) = results
    dk, dv = (x.new_zeros(x.shape, dtype=torch.float32) for x in (shard.k, shard.v))
    for rows, part, inputs in blocks:
        whole = out[:, :, rows], lse[:, :, rows]
        of_lse = None if d_lse is None else d_lse[:, :, rows]
        more_dq, more_dk, more_dv = backward_block(inputs, *whole, d_out[:, :, rows], of_lse, between=between)
        dq[:, :, rows].add_(more_dq)
        dk[:, :, part].add_(more_dk)
        dv[:, :, part].add_(more_dv)
    return Shard(dk, dv, None)
