"""Ring attention for decoding: keys and values travel around the ranks, partials are merged at the end.

The baseline for `tree_decode`, built as well as it can be: K and V are sent in their own dtype with their own
number of heads, straight from the caller's memory where that is contiguous, in P - 1 hops; the next shard arrives
in one of two buffers while the current one is attended. Only the sizes of the shards are exchanged before.
Liu et al., "Ring Attention with Blockwise Transformers" (2023), section 3.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

import numpy as np
import torch

from attention.array_types import AnyArray, DecodeArguments, Numbers, Ranks
from attention.arrays import DTYPES, Inputs
from attention.decode.agreement import agree_once
from attention.decode.communicators import state_of
from attention.decode.sharded import Options, ShardedCall
from attention.gpu.loading import Folds, load_once
from attention.gpu.placement import capturing
from attention.local.dispatch import attend
from attention.ring.ring_buffers import Partials, ShardBuffers, partials_like
from attention.spec import Spec
from attention.visibility import Masking, Visibility
from topocomm import Communicator, MismatchError, OperatorError
from topocomm.extend import skipped_by_dynamo

if TYPE_CHECKING:
    from attention.partial import Partial

AGREED = ("batch", "heads", "q_len", "d", "kv_heads", "d_v", "dtype of k and v")


@overload
def ring_decode(
    q: AnyArray,
    k_shard: AnyArray,
    v_shard: AnyArray,
    comm: Ranks,
    *,
    return_lse: Literal[False] = False,
    out: AnyArray | None = None,
    **rest: Unpack[DecodeArguments],
) -> AnyArray: ...
@overload
def ring_decode(
    q: AnyArray,
    k_shard: AnyArray,
    v_shard: AnyArray,
    comm: Ranks,
    *,
    return_lse: Literal[True],
    out: AnyArray | None = None,
    **rest: Unpack[DecodeArguments],
) -> Partial: ...
# The arguments are those of a frozen public interface; the sharded methods share them.
@skipped_by_dynamo
def ring_decode(  # noqa: PLR0913
    q: AnyArray,
    k_shard: AnyArray,
    v_shard: AnyArray,
    comm: Ranks,
    *,
    spec: Spec | None = None,
    q_positions: Numbers = None,
    kv_positions: Numbers = None,
    kv_mask: Numbers = None,
    kv_lengths: Numbers = None,
    return_lse: bool = False,
    out: AnyArray | None = None,
) -> Any:
    """`tree_decode` with a ring in place of the reduction; the same arguments, results and errors.

    Every rank attends all shards, keeps one partial for each and folds them in rank order. So all ranks end with the
    same bits, provided that they run the same CPU with the same number of torch threads: unlike in `tree_decode`,
    each rank computes everything itself.

    Memory: two buffers of the largest shard, and P + 1 partials; on a GPU a third buffer, for a copy of this rank's
    own. They stay with the communicator, and so does a reference to the last shard given.

    On a GPU a stream of its own moves a shard while the current one attends another. Sizes are exchanged by the host,
    which waits for the other ranks, not for the GPU; so no CUDA graph records the call.
    """
    masking = Masking(q_positions, kv_positions, kv_mask, kv_lengths)
    options = Options(spec, masking, return_lse, out)
    call = ShardedCall.begin("ring_decode", q, (k_shard, v_shard), comm, options)
    agree_once("ring_decode", call)
    load_once("ring_decode", call, moved=True, folds=Folds(call.comm.size, torch.float32))
    state = state_of(call.comm)
    if "ring" not in state:
        state["ring"] = _Ring(call.comm)
    merged = call.empty()
    state["ring"].run(call.inputs, merged)
    return call.finish(merged)


class _Ring:
    """What stays prepared between the ring calls of one communicator."""

    def __init__(self, comm: Communicator) -> None:
        self.comm = comm
        self._buffers = ShardBuffers(comm)
        self._shifts: dict[int, list[Any]] = {}
        """By number of messages, a shift for each hop."""
        self._partials: Partials | None = None

    def run(self, inputs: Inputs, merged: Partial) -> None:
        """Attend all shards and write the merged partial; collective.

        Raises:
            OperatorError: A CUDA graph is being captured.
            MismatchError: Ranks differ in what they must agree on.
        """
        if capturing(inputs.q.device):
            raise OperatorError("ring_decode: the host exchanges sizes, which no CUDA graph records; use tree_decode")
        rank, size = self.comm.rank, self.comm.size
        shape = (*inputs.q.shape, inputs.k.shape[1], inputs.v.shape[3], DTYPES.index(inputs.k.dtype))
        record = np.array([inputs.k.shape[2], inputs.visibility is not None, *shape], np.int64)
        records = [r.view(np.int64).tolist() for r in self.comm.allgather_bytes(record.view(np.uint8))]
        differing = [other for other, row in enumerate(records) if row[2:] != records[0][2:]]
        if differing:
            raise MismatchError(
                f"rank {rank}: ring_decode: ranks {differing} differ from rank 0 in [{', '.join(AGREED)}]: "
                f"rank 0 has {records[0][2:]}, rank {differing[0]} has {records[differing[0]][2:]}"
            )
        sizes, masked = [row[0] for row in records], any(row[1] for row in records)
        visibility = inputs.visibility
        if visibility is None and masked:  # all see all
            zeros = (inputs.q.new_zeros((1, x.shape[2]), dtype=torch.int64) for x in (inputs.q, inputs.k))
            visibility = Visibility.of(Spec(), *zeros)
        keys = None if visibility is None else visibility.keys
        shards = self._buffers.in_turn(inputs, keys, sizes)
        messages = 2 if keys is None else 3
        if messages not in self._shifts:
            self._shifts[messages] = [self.comm.prepare_shift(messages) for _ in range(size - 1)]
        partials = self._partials = partials_like(inputs, size, self._partials)
        for hop, shard in enumerate(shards):
            of_shard = None if visibility is None or shard.keys is None else visibility.with_keys(shard.keys)
            block = replace(inputs, k=shard.k, v=shard.v, visibility=of_shard)
            target = partials.of((rank - hop) % size)
            if hop == size - 1:
                attend(block, target)
            else:
                shift = self._shifts[messages][hop]
                shift.start(shard.buffers, shards[hop + 1].buffers)
                attend(block, target, between=shift.advance)
                shift.wait()
        partials.fold(merged)
