"""Canonical order: the keys of a rank by virtual shard, so that bits do not depend on the number of ranks.

A key belongs to the virtual shard that its position says. Every virtual shard gives one partial, with its keys in
ascending order; topocomm merges them by one tree over all virtual shards (`order="canonical"`). A rank owns whole
virtual shards, so neither the partials nor the tree depend on how many ranks there are.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from attention import gpu
from attention.arrays import Inputs, empty_partial
from attention.cache.shards import ShardMap
from attention.decode.communicators import state_of
from attention.gpu.masks import to_device
from attention.gpu.placement import capturing, on_gpu, on_host
from attention.local.blocks import attend_blocks
from attention.local.compiled_attention import attend_segments, covers
from attention.partial import Partial
from topocomm import Communicator, OperatorError

Ints = NDArray[np.int64]
ORDERS_LIMIT = 8
"""Orders of keys that stay on a GPU, per communicator: the layers of a model share one."""


def canonical_partials(inputs: Inputs, comm: Communicator, shards: ShardMap, positions: Any) -> Partial:
    """Return the partials of this rank's virtual shards, out [shards, batch, heads, q_len, d_v] and lse likewise.

    Positions on a GPU are waited for.

    Raises:
        OperatorError: As `keys_by_shard`; or there are pages, and no kernel that takes them; or a CUDA graph is
            captured.
    """
    if on_gpu(inputs.q):
        if inputs.pages is not None:
            raise OperatorError(
                'tree_decode: block_tables with order="canonical" are not covered on GPUs; gather the pages into '
                "k_shard and v_shard, or leave order out"
            )
        if capturing(inputs.q.device):
            raise OperatorError('tree_decode: order="canonical" orders keys on the host, which no CUDA graph records')
        index, edges = _order_on_gpu(inputs, comm, shards, positions)
    else:
        order, bounds = keys_by_shard(inputs, comm, shards, positions)
        if covers(inputs):
            return attend_segments(inputs, order[None], np.array([bounds[:-1], bounds[1:]], np.int64).T)
        if inputs.pages is not None:
            raise OperatorError(
                'tree_decode: block_tables with order="canonical" need the compiled part and keys whose last axis is '
                "not strided; `topocomm doctor` says what is missing, or pass contiguous pages"
            )
        index, edges = torch.from_numpy(order), bounds.tolist()
    # One launch for every shard: how a GPU's kernel splits keys between programs depends on the shape of a launch, so
    # that shards in one launch would have bits that depend on how many there are.
    result, visibility = empty_partial((len(edges) - 1, *inputs.out_shape), inputs.q.device), inputs.visibility
    for number, (start, stop) in enumerate(pairwise(edges)):
        keys = index[start:stop]
        part = replace(
            inputs,
            k=inputs.k.index_select(2, keys),
            v=inputs.v.index_select(2, keys),
            visibility=None if visibility is None else visibility.with_keys(visibility.keys.index_select(1, keys)),
        )
        partial = Partial(result.out[number], result.lse[number])
        if on_gpu(inputs.q):
            gpu.attend(part, partial)
        else:
            attend_blocks(part, partial, None)
    return result


def keys_by_shard(inputs: Inputs, comm: Communicator, shards: ShardMap, positions: Any) -> tuple[Ints, Ints]:
    """Return (numbers of this rank's keys by virtual shard, ascending within each; where each begins, and the end).

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
    local = np.asarray(shards.virtual_shard_of(known)) - first
    if local.size and not 0 <= local.min() <= local.max() < stop - first:
        wrong = int(known[(local < 0) | (local >= stop - first)][0])
        raise OperatorError(
            f"tree_decode: rank {comm.rank} owns the virtual shards {first} to {stop - 1}, but position {wrong} "
            f"belongs to {int(shards.virtual_shard_of(np.array(wrong)))}; keys must lie where shards= says, "
            f"by default ShardMap({comm.size}, virtual_shards=96)"
        )
    if (known[1:] < known[:-1]).any():
        order = np.lexsort((known, local))
    else:
        order = np.argsort(local.astype(np.uint16 if stop - first <= 1 << 16 else np.int64), kind="stable")
    return order.astype(np.int64), np.searchsorted(local[order], np.arange(stop - first + 1)).astype(np.int64)


def _order_on_gpu(
    inputs: Inputs, comm: Communicator, shards: ShardMap, positions: Any
) -> tuple[torch.Tensor, list[int]]:
    """`keys_by_shard` with the numbers on the device; cached."""
    orders: OrderedDict[Any, tuple[torch.Tensor, list[int]]] = state_of(comm).setdefault("orders", OrderedDict())
    positions = positions if positions is None else np.asarray(on_host(positions))
    as_bytes = b"" if positions is None else np.ascontiguousarray(positions).tobytes()
    key = shards, inputs.q.device, inputs.n, hashlib.blake2b(as_bytes, digest_size=16).digest()
    cached = orders.get(key)
    if cached is None:
        order, edges = keys_by_shard(inputs, comm, shards, positions)
        index = to_device("tree_decode", "kv_positions", torch.from_numpy(order), inputs.q.device)
        cached = orders[key] = index, edges.tolist()
        if len(orders) > ORDERS_LIMIT:
            orders.popitem(last=False)
    return cached
