"""Canonical order on a GPU: one kernel launch for every virtual shard of the rank.

How keys are split between programs depends on the shape of a launch, so that shards in one launch would have bits that
depend on how many there are. The keys of a shard are gathered before, once for all query heads.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from attention import gpu
from attention.arrays import Inputs, empty_partial
from attention.cache.shards import ShardMap
from attention.decode.canonical_shards import keys_by_shard
from attention.decode.communicators import state_of
from attention.gpu.masks import moved
from attention.gpu.placement import capturing, on_host
from attention.partial import Partial
from topocomm import Communicator, OperatorError

KEPT = 8
"""Orders of keys that stay on the GPU: the layers of a model have one between them."""


def canonical_there(inputs: Inputs, comm: Communicator, shards: ShardMap, positions: Any) -> Partial:
    """`canonical_partials` of inputs on a GPU; positions that are there too are waited for.

    Raises:
        OperatorError: As there; or there are pages, or a CUDA graph is captured.
    """
    if inputs.pages is not None:
        raise OperatorError(
            'tree_decode: block_tables with order="canonical" are not covered on GPUs; gather the pages into k_shard '
            "and v_shard, or leave order out"
        )
    if capturing(inputs.q.device):
        raise OperatorError('tree_decode: order="canonical" orders keys on the host, which no CUDA graph records')
    index, edges = _index(inputs, comm, shards, positions if positions is None else np.asarray(on_host(positions)))
    result = empty_partial((len(edges) - 1, *inputs.out_shape), inputs.q.device)
    seen = inputs.visibility
    for number, (start, stop) in enumerate(pairwise(edges)):
        mine = index[start:stop]
        part = replace(
            inputs,
            k=inputs.k.index_select(2, mine),
            v=inputs.v.index_select(2, mine),
            visibility=None if seen is None else seen.with_keys(seen.keys.index_select(1, mine)),
        )
        gpu.attend(part, Partial(result.out[number], result.lse[number]))
    return result


def _index(inputs: Inputs, comm: Communicator, shards: ShardMap, positions: Any) -> tuple[torch.Tensor, list[int]]:
    """(numbers of the keys by virtual shard, on the device; where each begins, and the end)."""
    orders: OrderedDict[Any, tuple[torch.Tensor, list[int]]] = state_of(comm).setdefault("orders", OrderedDict())
    told = b"" if positions is None else np.ascontiguousarray(positions).tobytes()
    key = shards, inputs.q.device, inputs.n, hashlib.blake2b(told, digest_size=16).digest()
    found = orders.get(key)
    if found is None:
        order, edges = keys_by_shard(inputs, comm, shards, positions)
        index = moved("tree_decode", "kv_positions", torch.from_numpy(order), inputs.q.device)
        found = orders[key] = index, edges.tolist()
        if len(orders) > KEPT:
            orders.popitem(last=False)
    return found
