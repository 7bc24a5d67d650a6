"""Tree attention: the partial of this rank's keys, then one planned reduction over the ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from attention import gpu
from attention.agreeing import agree_once
from attention.arrays import empty_partial
from attention.canonical import canonical_partials
from attention.communicators import kept, prepared, state_of, turns_of
from attention.gpu.canonical import canonical_there
from attention.gpu.loading import load_once
from attention.gpu.where import on_gpu
from attention.local.cpu import attend
from attention.merge import LOGSUMEXP, LSE, OUT
from attention.partial import Partial
from attention.plain_step import plain_step, remember
from attention.ring_buffers import Partials
from attention.sharded import Options, ShardedCall, head_range
from attention.shards import ShardMap
from attention.spec import Spec
from attention.tree_gradients import decode_with_gradients, wants_gradients
from attention.verifying import Verification, due
from attention.visibility import Masking
from topocomm import OperatorError

WIRES = ("float32", "bfloat16")


# The arguments are those of a frozen public interface; the sharded methods share them.
def tree_decode(  # noqa: PLR0913
    q: Any,
    k_shard: Any,
    v_shard: Any,
    comm: Any,
    *,
    spec: Spec | None = None,
    q_positions: Any = None,
    kv_positions: Any = None,
    kv_mask: Any = None,
    kv_lengths: Any = None,
    block_tables: Any = None,
    order: str = "any",
    shards: ShardMap | None = None,
    result: str = "all",
    wire: str = "float32",
    verify: bool | int = False,
    return_lse: bool = False,
    out: Any = None,
) -> Any:
    """Attention of replicated queries over keys that are sharded over the ranks; the same bits on every rank.

    Every rank attends its own keys and the partials are merged by one reduction with LOGSUMEXP, on the plan that
    topocomm chooses for the machine: batch x heads x q_len x (d_v + 1) float32 per message, whatever the context
    length. Shyam et al., "Tree Attention" (2024), section 5, with its three all-reduces made one.

    Args:
        q: Queries [batch, heads, q_len, d], float32, float16 or bfloat16, NumPy or torch; the same on all ranks. On all
            ranks in host memory, or on all on a GPU; then the call is asynchronous, as torch's operations are.
        k_shard: This rank's keys [batch, kv_heads, n_local, d]; n_local may differ between ranks and may be 0. With
            block_tables [pages, kv_heads, page size, d].
        v_shard: This rank's values [batch, kv_heads, n_local, d_v]; likewise.
        comm: A topocomm.Communicator; or an mpi4py communicator, a torch ProcessGroup or a 1-D DeviceMesh (wrapped at
            its first use, and kept).
        spec: Which attention; None: Spec(). Its sinks are counted once, whatever the number of ranks.
        q_positions: Global positions of the queries, integers [q_len] or [batch, q_len]; the same on all ranks.
            Used only if causal or with a window or slopes, and needed then, except on a single rank, where the queries
            are by default the last of the sequence.
        kv_positions: Global positions of this rank's keys, [n_local] or [batch, n_local], in any order; likewise.
        kv_mask: Bool [n_local] or [batch, n_local], True where a key exists; None: all exist.
        kv_lengths: Integers [batch]: only the first so many local keys exist. None: all. On a GPU it is not looked at.
        block_tables: Integers [batch, pages of an entry]: where the keys of an entry lie, as in `local_attention`.
        order: "any": the plan's own tree. "canonical": one tree over virtual shards, so that the bits do not depend on
            how many ranks there are; kv_positions [n_local] are needed then, on a GPU best in host memory.
        shards: Of canonical order, which virtual shard a position belongs to and which a rank owns; None:
            ShardMap(comm.size), which deals blocks of 16 tokens to 64 virtual shards in turn.
        result: "all": every rank gets all heads. "heads": rank r gets the heads from r heads // P to
            (r + 1) heads // P, by a reduce-scatter that sends half as much; for a next step that is sharded by heads.
        wire: "float32": partials are those of `local_attention(exact="float32")`, and nothing rounds them on their
            way. "bfloat16": `out` is rounded once, and sent to all ranks in one step that every rank folds in float32;
            so any kernel may attend the shards. lse is float32 always.
        verify: True: in one call of 64 one head, another each time, is computed again in float64, and what must hold
            of all heads is checked, see `attention.verifying`; an integer: in one call of so many.
        return_lse: Return Partial(out, lse) instead of out.
        out: Array of q's kind and dtype for the result; may be q.

    Returns:
        out [batch, heads, q_len, d_v] of q's kind and dtype; with `return_lse` a Partial with lse float32
        [batch, heads, q_len]. With result="heads" this rank's heads only. Queries that see no key on any rank get
        0 and -inf.

    Gradients: where q, k_shard or v_shard are tensors that require gradients, so does the result (with wire="float32",
    result="all", order="any" and without `out`), provided that all ranks compute the same loss of it: q's gradient is
    then the sum over the ranks, on every rank.

    Collective: every rank calls it with the same shapes. If one rank raises, the others learn of it at their next
    wait (threads: at once; MPI: the job ends with the traceback) or at the deadline.

    Raises:
        OperatorError: This rank's arguments do not fit, or positions are missing.
        MismatchError: Ranks differ in what they must have alike; a key is on two ranks, or missing between others
            (found at the first call of a kind, and by verification); or verification found a wrong result.
        DeadlineError, RankFailedError: Another rank did not come, or failed.

    On a GPU a call that ran once can be recorded in a CUDA graph, with positions, masks and lengths on the GPU, without
    verify, where values travel by NCCL.

    Accuracy: scores, softmax and merges are float32; |out - exact| <= 1e-5 max |v| for float32 inputs. On a GPU more
    than 16 queries have their weights rounded to the dtype of k and v.
    """
    plain = order == "any" and result == "all" and wire == "float32" and verify is False
    masked = not (q_positions is kv_positions is kv_mask is kv_lengths is block_tables is None)
    if plain and not masked and shards is None and out is None:
        again = plain_step(comm, q, spec)
        found = None if again is None else again.run(q, k_shard, v_shard)
        if found is not None:
            return found if return_lse else found.out
    masking = Masking(q_positions, kv_positions, kv_mask, kv_lengths, block_tables)
    _check_choices(order, wire, shards)
    if wants_gradients(q, k_shard, v_shard):
        _check_differentiable(order, wire, result, out, (q, k_shard, v_shard, block_tables))
        same: dict[str, Any] = masking._asdict()

        def decode(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
            return tree_decode(q, k, v, comm, spec=spec, verify=verify, return_lse=True, **same)

        found = decode_with_gradients(decode, (q, k_shard, v_shard), comm, spec, masking)
        return found if return_lse else found.out
    options = Options(spec, masking, return_lse, out, result)
    call = ShardedCall.begin("tree_decode", q, (k_shard, v_shard), comm, options)
    agree_once("tree_decode", call, (("order", order), ("result", result), ("wire", wire)))
    load_once("tree_decode", call, folds=0 if wire == "float32" else call.comm.size)
    watch = None
    if verify is not False and due(call.comm, verify, call.inputs.q.device) and call.inputs.q.numel():
        watch = Verification(call, wire)
    if order == "canonical":
        merged = _canonical(call, watch, shards or ShardMap(call.comm.size))
    elif wire == "bfloat16" and call.comm.size > 1:
        merged = _sixteen_bit(call, watch, exact=verify is not False)
    elif result == "heads":
        merged = _scattered(call, watch)
    else:
        merged = _reduced(call, watch)
    if watch is not None:
        watch.check(merged)
    return call.finish(merged)


def _check_differentiable(order: str, wire: str, result: str, out: Any, given: tuple[Any, ...]) -> None:
    *tensors, block_tables = given
    if order != "any" or wire != "float32" or result != "all" or out is not None or block_tables is not None:
        raise OperatorError(
            'tree_decode: gradients are there for order="any", result="all" and wire="float32", without out and '
            "block_tables; call it under torch.no_grad() or pass detached tensors"
        )
    if not all(isinstance(x, torch.Tensor) for x in tensors):
        raise OperatorError("tree_decode: where gradients are wanted, q, k_shard and v_shard must all be torch tensors")


def _check_choices(order: str, wire: str, shards: ShardMap | None) -> None:
    if order not in ("any", "canonical"):
        raise OperatorError(f'tree_decode: order must be "any" or "canonical", got {order!r}')
    if wire not in WIRES:
        raise OperatorError(f"tree_decode: wire must be one of {', '.join(WIRES)}, got {wire!r}")
    if order == "canonical" and wire != "float32":
        raise OperatorError(
            'tree_decode: canonical order needs wire="float32": what is rounded on the wire depends on the layout'
        )
    if order == "any" and shards is not None:
        raise OperatorError('tree_decode: shards belong to order="canonical"')


def _reduced(call: ShardedCall, watch: Verification | None) -> Partial:
    """All heads by one all-reduce."""
    comm, shape, device = call.comm, call.inputs.out_shape, call.inputs.q.device
    there = on_gpu(call.inputs.q)
    empty = (lambda: empty_partial(shape, device)._asdict()) if there else lambda: _arrays(shape)
    key = (shape, device if there else None)
    reduction = kept(comm, key, lambda: comm.prepare("allreduce", like=empty(), operator=LOGSUMEXP))
    # Where the plan sends the payload whole, the partial is written straight into the send buffer.
    mine = reduction.input
    if mine is None:
        mine = empty()
    partial = _tensors(mine)
    if there:
        turns_of(comm).take(device, reduction)
    attend(call.inputs, partial)
    if watch is not None:
        watch.note(partial.lse)
    if call.target is None:
        remember(comm, call.inputs, call.options.spec, key)
    place = None if call.target is None else call.empty()._asdict()
    if place is not None and not there:
        place = {name: x.numpy() for name, x in place.items()}
    return _tensors(reduction(mine, out=place))


def _arrays(shape: tuple[int, ...]) -> dict[str, NDArray[np.float32]]:
    """Of NumPy, since so the compiled reduction is entered at once."""
    return {OUT: np.empty(shape, np.float32), LSE: np.empty(shape[:3], np.float32)}


def _tensors(partial: dict[str, Any]) -> Partial:
    out, lse = partial[OUT], partial[LSE]
    return Partial(torch.from_numpy(out), torch.from_numpy(lse)) if isinstance(out, np.ndarray) else Partial(out, lse)


def _scattered(call: ShardedCall, watch: Verification | None) -> Partial:
    """This rank's heads by one reduce-scatter, whose rows are heads."""
    batch, heads, q_len, d_v = call.inputs.out_shape
    counts = [part.stop - part.start for part in (head_range(heads, call.comm.size, r) for r in range(call.comm.size))]
    by_heads = empty_partial((heads, batch, q_len, d_v), call.inputs.q.device)._asdict()
    reduction = prepared(call.comm, "reduce_scatter", by_heads, LOGSUMEXP, rows=tuple(counts))
    if on_gpu(call.inputs.q):
        turns_of(call.comm).take(call.inputs.q.device, reduction)
        by_heads = by_heads if reduction.input is None else reduction.input
    attend(call.inputs, Partial(*(by_heads[name].transpose(0, 1) for name in (OUT, LSE))))
    if watch is not None:
        watch.note(by_heads[LSE].transpose(0, 1))
    found = reduction(by_heads)
    return Partial(*(found[name].transpose(0, 1).contiguous() for name in (OUT, LSE)))


def _sixteen_bit(call: ShardedCall, watch: Verification | None, *, exact: bool) -> Partial:
    """Partials rounded to bfloat16 go to all ranks, which fold them alike.

    So a kernel that rounds its out to bfloat16 loses nothing more, and only here other libraries attend shards:
    wire="float32" is for partials that nothing has rounded.
    """
    inputs = call.inputs
    mine = inputs.empty_partial()
    attend(inputs, mine, exact=exact)
    if watch is not None:
        watch.note(mine.lse)
    sent = {OUT: mine.out.bfloat16()[None], LSE: mine.lse[None]}
    gather = prepared(call.comm, "allgather", sent)
    if on_gpu(inputs.q):
        turns_of(call.comm).take(inputs.q.device, gather)
    found = gather(sent)
    if on_gpu(inputs.q):
        return _own_heads(call, gpu.fold(found[OUT], found[LSE]))
    state, size = state_of(call.comm), call.comm.size
    partials = state.get("partials")
    if partials is None or partials.shape != inputs.out_shape:
        partials = state["partials"] = Partials(inputs.out_shape, size)
    for rank in range(size):
        partials.of(rank).out.copy_(found[OUT][rank])
        partials.of(rank).lse.copy_(found[LSE][rank])
    whole = inputs.empty_partial()
    partials.fold(whole)
    return _own_heads(call, whole)


def _canonical(call: ShardedCall, watch: Verification | None, shards: ShardMap) -> Partial:
    """One partial per virtual shard, merged by the tree over all virtual shards."""
    positions = call.options.masking.kv_positions
    make = canonical_there if on_gpu(call.inputs.q) else canonical_partials
    parts = make(call.inputs, call.comm, shards, positions)._asdict()
    if watch is not None:
        watch.note(torch.logsumexp(parts[LSE], 0))
    ranges = shards.virtual_range(call.comm.rank)
    whole = prepared(call.comm, "allreduce", parts, LOGSUMEXP, order="canonical", shards=ranges)(parts)
    return _own_heads(call, Partial(**whole))


def _own_heads(call: ShardedCall, whole: Partial) -> Partial:
    return Partial(*(x[:, call.heads].contiguous() for x in whole))
