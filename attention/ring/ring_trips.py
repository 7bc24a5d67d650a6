"""The trips of keys and values around the ring: forward to attend, backward with the sums of their gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from attention import gpu
from attention.arrays import Inputs
from attention.decode.communicators import turns_of
from attention.gpu.loading import load_together
from attention.gpu.placement import on_gpu
from attention.gpu.ring_memory import Slots
from attention.local.dispatch import attend
from attention.partial import Partial, add_sinks
from attention.ring.backward import backward_block
from attention.ring.ring_buffers import Running, Scratch, Shard
from attention.ring.ring_layout import Parts
from attention.visibility import Visibility
from topocomm import Communicator

NOTHING = Shard(torch.empty(0), torch.empty(0), None)
"""What is sent where there is nothing to send, so that every step is one exchange of as many messages."""


class Trips:
    """What stays prepared between the calls of one communicator."""

    def __init__(self, comm: Communicator) -> None:
        self.comm = comm
        self._own = Scratch()
        self._received = Scratch(), Scratch()
        self._sums = Scratch(), Scratch()
        self._slots = Slots()
        self._shifts: dict[int, Any] = {}
        """By number of messages."""

    def forward(self, inputs: Inputs, parts: Parts) -> Partial:
        """The float32 result for this rank's queries; collective."""
        if on_gpu(inputs.q):
            return self._forward_there(inputs, parts)
        rank, size = self.comm.rank, self.comm.size
        shape = inputs.out_shape
        running = {rows.start: Running((*shape[:2], rows.stop - rows.start, shape[3])) for rows in parts.pieces[rank]}
        shards = self._in_turn(inputs, parts)
        for hop, shard in enumerate(shards):
            shift = None
            if hop < size - 1:
                shift = self._shift(2)
                shift.start(shard.buffers, shards[hop + 1].buffers)
            for rows, part, seen in parts.blocks((rank - hop) % size):
                piece = running[rows.start]
                attend(_block(inputs, shard, rows, part, seen), piece.next, between=shift and shift.advance)
                piece.add()
            if shift is not None:
                shift.wait()
        whole = inputs.empty_partial()
        for rows in parts.pieces[rank]:
            for target, found in zip(whole, running[rows.start].merged, strict=True):
                target[:, :, rows].copy_(found)
        return whole if inputs.spec.sinks is None else add_sinks(whole, inputs.spec.sinks)

    def _forward_there(self, inputs: Inputs, parts: Parts) -> Partial:
        """The same on a GPU: every block is merged onto the result by the kernel that attends it.

        No row is left out: a query sees its own key.
        """
        rank, size = self.comm.rank, self.comm.size
        kind = ("ring_attention", inputs.q.shape[:2], *parts.sizes, inputs.q.dtype, inputs.spec)
        load_together(self.comm, kind, inputs, lambda: self._load(inputs, parts))
        whole, shards = inputs.empty_partial(), self._in_turn(inputs, parts)
        begun: set[int] = set()
        for hop, shard in enumerate(shards):
            shift = None
            if hop < size - 1:
                shift = self._shift(2)
                shift.start(shard.buffers, shards[hop + 1].buffers)
            for rows, part, seen in parts.blocks((rank - hop) % size):
                running = Partial(*(x[:, :, rows] for x in whole))
                gpu.attend_onto(_block(inputs, shard, rows, part, seen), running, first=rows.start not in begun)
                begun.add(rows.start)
                if shift is not None:
                    shift.advance()
            if shift is not None:
                shift.wait()
        return whole if inputs.spec.sinks is None else add_sinks(whole, inputs.spec.sinks)

    def _load(self, inputs: Inputs, parts: Parts) -> None:
        """Run the kernel once for every form of block, on this rank's keys in place of those of a shard as long."""
        rank, shard, forms = self.comm.rank, Shard(inputs.k, inputs.v, None), set()
        whole = inputs.empty_partial()
        alike = [other for other, n in enumerate(parts.sizes) if n == parts.sizes[rank]]
        for rows, part, seen in (block for other in alike for block in parts.blocks(other)):
            form = rows.stop - rows.start, seen is None
            if form in forms:
                continue
            forms.add(form)
            running = Partial(*(x[:, :, rows] for x in whole))
            for first in (True, False):
                gpu.attend_onto(_block(inputs, shard, rows, part, seen), running, first=first)

    def backward(
        self, inputs: Inputs, parts: Parts, result: Partial, arriving: Partial
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """float32 (dq, dk, dv) of this rank's tokens; collective.

        Step h computes with the shard of rank - h. Meanwhile the next shard arrives, and so do the gradients that the
        ranks before have summed up for the shard in hand; after P steps those of this rank's own shard come home.

        Args:
            inputs: As forward.
            parts: As forward.
            result: What forward returned: out and lse over all keys.
            arriving: The gradients of out and of lse; that of lse may be None.
        """
        size = self.comm.size
        dq = inputs.q.new_zeros(inputs.q.shape, dtype=torch.float32)
        shards = self._in_turn(inputs, parts)
        nothing = NOTHING if not on_gpu(dq) else Shard(dq.new_empty(0), dq.new_empty(0), None)
        summed = nothing  # gradients for the shard that was in hand before
        for step in range(size + 1 if size > 1 else 1):
            shift, coming = None, nothing
            if size > 1:
                shift = self._shift(4)
                coming = nothing if step == 0 else self._coming(inputs, parts, step)
                leaving, next_one = shards[step : step + 2] if step < size - 1 else (nothing, nothing)
                shift.start(leaving.buffers + summed.buffers, next_one.buffers + coming.buffers)
            found = nothing
            if step < size:
                blocks = [
                    (rows, part, _block(inputs, shards[step], rows, part, seen))
                    for rows, part, seen in parts.blocks((self.comm.rank - step) % size)
                ]
                found = _contribution(shards[step], blocks, (result, arriving), dq, shift and shift.advance)
            if shift is not None:
                shift.wait()
            if step == 0:
                summed = found
            else:
                if step < size:
                    coming.k.add_(found.k)
                    coming.v.add_(found.v)
                summed = coming
        return dq, summed.k, summed.v

    def _in_turn(self, inputs: Inputs, parts: Parts) -> list[Shard]:
        """The shards in the order in which they are in hand: this rank's, then those that arrive."""
        rank, size, sizes = self.comm.rank, self.comm.size, parts.sizes
        if on_gpu(inputs.q):
            turns_of(self.comm).take(inputs.q.device)
            return self._slots.in_turn(inputs, None, sizes, rank)
        if size > 1:
            for scratch in self._received:
                scratch.shard(inputs, max(sizes), masked=False)  # grows at most once a call
        own = Shard(self._own.place("k", inputs.k), self._own.place("v", inputs.v), None)
        arriving = (
            self._received[hop % 2].shard(inputs, sizes[(rank - hop - 1) % size], masked=False)
            for hop in range(size - 1)
        )
        return [own, *arriving]

    def _coming(self, inputs: Inputs, parts: Parts, step: int) -> Shard:
        """Where the gradients for the shard in hand arrive: own memory at last, which the caller gets."""
        size, scratch = self.comm.size, self._sums[step % 2]
        n = parts.sizes[(self.comm.rank - step) % size]
        shapes = [(*x.shape[:2], n, x.shape[3]) for x in (inputs.k, inputs.v)]
        if step == size:
            dk, dv = (inputs.k.new_empty(shape, dtype=torch.float32) for shape in shapes)
        else:
            like = torch.float32, inputs.k.device
            dk, dv = (scratch.view(name, shape, *like) for name, shape in zip("kv", shapes, strict=True))
        return Shard(dk, dv, None)

    def _shift(self, messages: int) -> Any:
        """The exchange of so many messages with both neighbours; collective at first use."""
        if messages not in self._shifts:
            self._shifts[messages] = self.comm.prepare_shift(messages)
        return self._shifts[messages]


def _block(inputs: Inputs, shard: Shard, rows: slice, part: slice, seen: Visibility | None) -> Inputs:
    """The queries `rows` with the keys `part` of a shard."""
    q, k, v = inputs.q[:, :, rows], shard.k[:, :, part], shard.v[:, :, part]
    return replace(inputs, q=q, k=k, v=v, visibility=seen)


def _contribution(
    shard: Shard,
    blocks: list[tuple[slice, slice, Inputs]],
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
