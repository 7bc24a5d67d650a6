"""Canonical order: the keys of a rank by virtual shard, so that bits do not depend on the number of ranks.

A key belongs to the virtual shard that its position says. Every virtual shard gives one partial, with its keys in
ascending order; topocomm merges them by one tree over all virtual shards (`order="canonical"`). A rank owns whole
virtual shards, so neither the partials nor the tree depend on how many ranks there are.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from attention.arrays import Inputs
from attention.cache.shards import ShardMap
from attention.local.blocks import attend_blocks
from attention.local.compiled_attention import attend_segments, kernel_takes
from attention.partial import Partial
from topocomm import Communicator, OperatorError

Ints = NDArray[np.int64]


def canonical_partials(inputs: Inputs, comm: Communicator, shards: ShardMap, positions: Any) -> Partial:
    """The partials of this rank's virtual shards, out [shards, batch, heads, q_len, d_v] and lse likewise.

    Raises:
        OperatorError: As `keys_by_shard`; or there are pages, and no kernel that takes them.
    """
    order, edges = keys_by_shard(inputs, comm, shards, positions)
    segments = np.array([edges[:-1], edges[1:]], np.int64).T
    if kernel_takes(inputs):
        return attend_segments(inputs, order[None], segments)
    if inputs.pages is not None:
        raise OperatorError(
            'tree_decode: block_tables with order="canonical" need numba and keys whose last axis is not strided; '
            "install topocomm[attention], or pass contiguous pages"
        )
    return _one_by_one(inputs, order, segments)


def keys_by_shard(inputs: Inputs, comm: Communicator, shards: ShardMap, positions: Any) -> tuple[Ints, Ints]:
    """(numbers of this rank's keys by virtual shard, ascending within each; where each begins, and the end).

    Raises:
        OperatorError: Positions are missing, or of another rank's shards; the map is for other ranks.
    """
    if shards.ranks != comm.size:
        raise OperatorError(f"tree_decode: shards are for {shards.ranks} ranks, the communicator has {comm.size}")
    if positions is None:
        raise OperatorError('tree_decode: order="canonical" needs kv_positions, the global positions of the keys')
    known = np.asarray(positions)
    known = known[0] if known.ndim == 2 and len(known) == 1 else known
    if known.shape != (inputs.n,):
        raise OperatorError(
            f'tree_decode: order="canonical" needs kv_positions [{inputs.n}], the same for all batch entries, '
            f"got {list(known.shape)}"
        )
    first, stop = shards.virtual_range(comm.rank)
    mine = np.asarray(shards.virtual_shard_of(known)) - first
    if mine.size and not 0 <= mine.min() <= mine.max() < stop - first:
        wrong = int(known[(mine < 0) | (mine >= stop - first)][0])
        raise OperatorError(
            f"tree_decode: rank {comm.rank} owns the virtual shards {first} to {stop - 1}, but position {wrong} "
            f"belongs to {int(shards.virtual_shard_of(np.array(wrong)))}; keys must lie where their ShardMap says"
        )
    return _by_shard(known, mine, stop - first)


def _by_shard(positions: Ints, shard: Ints, count: int) -> tuple[Ints, Ints]:
    """(numbers of the keys by virtual shard, ascending within each; where each begins, and the end)."""
    if (positions[1:] < positions[:-1]).any():
        order = np.lexsort((positions, shard))
    else:
        order = np.argsort(shard.astype(np.uint16 if count <= 1 << 16 else np.int64), kind="stable")
    return order.astype(np.int64), np.searchsorted(shard[order], np.arange(count + 1)).astype(np.int64)


def _one_by_one(inputs: Inputs, order: Ints, segments: Ints) -> Partial:
    """The same by matrix products."""
    shape = (len(segments), *inputs.out_shape)
    result = Partial(torch.empty(shape), torch.empty(shape[:4]))
    for number, (start, stop) in enumerate(segments.tolist()):
        index = torch.from_numpy(order[start:stop].copy())
        seen = inputs.visibility
        part = replace(
            inputs,
            k=inputs.k.index_select(2, index),
            v=inputs.v.index_select(2, index),
            visibility=None if seen is None else seen.with_keys(seen.keys.index_select(1, index)),
        )
        attend_blocks(part, Partial(result.out[number], result.lse[number]), None)
    return result
