"""Attention of a rank's heads over its group's tokens, or over all by a ring; forward and backward, run by run.

A run is heads of which as many share each key head (`HeadGrid.runs`): kernels take no others at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import torch

from attention.arrays import Inputs
from attention.gpu import without_sinks
from attention.gpu.loading import load_together
from attention.gpu.placement import on_gpu
from attention.local.dispatch import local_attention
from attention.partial import Partial, add_sinks
from attention.ring.backward import backward_block
from attention.ring.ring_trips import Trips
from attention.spec import Spec
from attention.ulysses.group_tokens import GroupTokens
from attention.ulysses.head_grid import HeadGrid
from attention.visibility import Visibility
from topocomm import Communicator

Gradients = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
MOST_STEPS = 16
"""Of a backward pass over a whole sequence: causal, it computes 17/32 of all pairs, beyond which steps save little."""
LEAST_QUERIES = 128
"""Of a step, so that products stay large; a choice that was not measured."""


class Run(NamedTuple):
    """Query and key heads of a run among those of this rank, and its inputs."""

    heads: slice
    kv_heads: slice
    inputs: Inputs


class HeadAttention:
    """What a rank computes between the all-to-alls of one call.

    Args:
        comm: All ranks.
        trips: Of this rank's ring; None: there is one group, which has all tokens.
        grid: Who has which heads.
        tokens: Who has which tokens.
        spec: Which attention, with slopes and sinks of all heads.
    """

    def __init__(
        self, comm: Communicator, trips: Trips | None, grid: HeadGrid, tokens: GroupTokens, spec: Spec
    ) -> None:
        self._comm, self._trips, self._grid, self._tokens, self._spec = comm, trips, grid, tokens, spec

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, exact: bool) -> Partial:
        """Return the float32 result of this rank's heads; collective.

        Args:
            q: [batch, heads, tokens, d], in the order of the sequence; heads may be 0.
            k: [batch, kv_heads, tokens, d].
            v: [batch, kv_heads, tokens, d_v].
            exact: Whether out must not be rounded to 16 bits on its way.
        """
        shape = (*q.shape[:3], v.shape[3])
        whole = Partial(*(q.new_empty(size, dtype=torch.float32) for size in (shape, shape[:3])))
        trips = self._trips
        if trips is None:
            if on_gpu(q):
                sizes = len(q), q.shape[2], q.shape[3], v.shape[3]
                kind = ("ulysses_attention", self._grid, *sizes, q.dtype, k.dtype, self._spec, exact)
                inputs = Inputs(q, k, v, self._spec, None)
                load_together(self._comm, kind, inputs, lambda: self._attend_whole(q, k, v, whole, exact))
            self._attend_whole(q, k, v, whole, exact)
        else:
            for run in self._runs(q, k, v):
                part = trips.forward(run.inputs, self._tokens.parts(trips.comm.rank, run.inputs.spec))
                _put(whole, run.heads, part)
        return whole

    def backward(
        self, tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor], result: Partial, arriving: Partial
    ) -> Gradients:
        """Return float32 (dq, dk, dv) of this rank's heads and its group's tokens; collective.

        `tensors` are (q, k, v) and `result` is what `forward` had and returned, sinks included; `arriving` are the
        gradients of out and of lse; that of lse may be None.
        """
        gradients = tuple(x.new_zeros(x.shape, dtype=torch.float32) for x in tensors)
        for run in self._runs(*tensors):
            of_run = Partial(*(x[:, run.heads] for x in result))
            of_lse = None if arriving.lse is None else arriving.lse[:, run.heads]
            coming = Partial(arriving.out[:, run.heads], of_lse)
            found = self._backward_run(run.inputs, of_run, coming)
            for target, heads, gradient in zip(gradients, (run.heads, *[run.kv_heads] * 2), found, strict=True):
                target[:, heads].copy_(gradient)
        return gradients[0], gradients[1], gradients[2]

    def _backward_run(self, inputs: Inputs, result: Partial, arriving: Partial) -> Gradients:
        if self._trips is not None:
            parts = self._tokens.parts(self._trips.comm.rank, inputs.spec)
            return self._trips.backward(inputs, parts, result, arriving)
        return _backward_whole(inputs, result, arriving)

    def _attend_whole(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, whole: Partial, exact: bool) -> None:
        """Over all tokens, which lie in the order of the sequence: positions need not be given."""
        for run in self._runs(q, k, v):
            inputs = run.inputs
            spec, of_q = without_sinks(inputs.spec), (inputs.q, inputs.k, inputs.v)
            part = local_attention(*of_q, spec=spec, exact="float32" if exact else None)
            _put(whole, run.heads, part if inputs.spec.sinks is None else add_sinks(part, inputs.spec.sinks))

    def _runs(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Iterator[Run]:
        place = self._grid.place(self._comm.rank)
        (first, _), (first_kv, _) = self._grid.heads_of(place), self._grid.kv_heads_of(place)
        for (start, stop), (start_kv, stop_kv) in self._grid.runs(place):
            heads, kv_heads = slice(start - first, stop - first), slice(start_kv - first_kv, stop_kv - first_kv)
            spec = spec_of_heads(self._spec, start, stop)
            yield Run(heads, kv_heads, Inputs(q[:, heads], k[:, kv_heads], v[:, kv_heads], spec, None))


def _backward_whole(inputs: Inputs, result: Partial, arriving: Partial) -> Gradients:
    """As `backward_block` over a whole sequence in order, some queries at a time with the range of keys they see."""
    if not inputs.spec.needs_positions or not inputs.n:
        return backward_block(inputs, *result, *arriving)
    dq, dk, dv = (x.new_zeros(x.shape, dtype=torch.float32) for x in (inputs.q, inputs.k, inputs.v))
    at = torch.arange(inputs.n)[None]
    step = max(LEAST_QUERIES, -(-inputs.n // MOST_STEPS))
    for start in range(0, inputs.n, step):
        rows = slice(start, min(start + step, inputs.n))
        seen = Visibility.of(inputs.spec, at[:, rows], at)
        keys = slice(max(0, int(seen.low.min())), min(inputs.n - 1, int(seen.high.max())) + 1)
        block = replace(
            inputs,
            q=inputs.q[:, :, rows],
            k=inputs.k[:, :, keys],
            v=inputs.v[:, :, keys],
            visibility=seen.with_keys(at[:, keys]),
        )
        of_lse = None if arriving.lse is None else arriving.lse[:, :, rows]
        parts = result.out[:, :, rows], result.lse[:, :, rows], arriving.out[:, :, rows], of_lse
        dq[:, :, rows], more_dk, more_dv = backward_block(block, *parts)
        dk[:, :, keys].add_(more_dk)
        dv[:, :, keys].add_(more_dv)
    return dq, dk, dv


def spec_of_heads(spec: Spec, start: int, stop: int) -> Spec:
    """Return the spec of some of the query heads."""
    own = {
        name: values[start:stop] for name in ("alibi_slopes", "sinks") if (values := getattr(spec, name)) is not None
    }
    return replace(spec, **own) if own else spec


def _put(whole: Partial, heads: slice, part: Partial) -> None:
    for target, x in zip(whole, part, strict=True):
        target[:, heads].copy_(x)
