"""Tree attention: the partial of this rank's keys, then one planned reduction over the ranks."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Literal, Unpack, overload

from attention.array_types import AnyArray, Numbers, Ranks, TreeArguments
from attention.cache.shards import ShardMap
from attention.decode.communicators import as_communicator, state_of
from attention.decode.prepared import DecodeOptions, PreparedDecode, prepared_step
from attention.partial import Partial
from attention.spec import Spec
from attention.visibility import UNMASKED, Masking
from topocomm import Communicator
from topocomm.extend import skipped_by_dynamo

STEPS_LIMIT = 32
"""Prepared steps kept per communicator; their plans and buffers stay where these are dropped."""


@overload
def tree_decode(
    q: AnyArray,
    k_shard: AnyArray,
    v_shard: AnyArray,
    comm: Ranks,
    *,
    return_lse: Literal[False] = False,
    out: AnyArray | None = None,
    **rest: Unpack[TreeArguments],
) -> AnyArray: ...
@overload
def tree_decode(
    q: AnyArray,
    k_shard: AnyArray,
    v_shard: AnyArray,
    comm: Ranks,
    *,
    return_lse: Literal[True],
    out: AnyArray | None = None,
    **rest: Unpack[TreeArguments],
) -> Partial: ...
# The arguments are those of a frozen public interface; the sharded methods share them.
@skipped_by_dynamo
def tree_decode(  # noqa: PLR0913
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
    block_tables: Numbers = None,
    order: str = "any",
    shards: ShardMap | None = None,
    result: str = "all",
    wire: str = "float32",
    verify: bool | int = False,
    return_lse: bool = False,
    out: AnyArray | None = None,
) -> Any:
    """Return attention of replicated queries over keys that are sharded over the ranks; the same bits on every rank.

    Every rank attends its own keys and the partials are merged by one reduction with LOGSUMEXP, on the plan that
    topocomm chooses for the machine: batch x heads x q_len x (d_v + 1) float32 per message, whatever the context
    length. Shyam et al., "Tree Attention" (2024), section 5, with its three all-reduces made one.

    Args:
        q: Queries [batch, heads, q_len, d], float32, float16 or bfloat16, NumPy or torch; the same on all ranks. On all
            ranks in host memory, or on all on a GPU; then the call is asynchronous, as torch's operations are.
        k_shard: This rank's keys [batch, kv_heads, n_local, d]; n_local may differ between ranks and may be 0. With
            block_tables [pages, kv_heads, page size, d].
        v_shard: This rank's values [batch, kv_heads, n_local, d_v]; likewise. May be the first columns of the keys, as
            the latents of multi-head latent attention are (`k_shard[..., :512]` of [batch, 1, n_local, 576], queries
            absorbed to [batch, heads, q_len, 576]): a view is read from memory once.
        comm: A topocomm.Communicator; or an mpi4py communicator, a torch ProcessGroup or a 1-D DeviceMesh (wrapped at
            its first use, and kept).
        spec: Which attention; None: Spec(). Its sinks are counted once, whatever the number of ranks.
        q_positions: Global positions of the queries, integers [q_len] or [batch, q_len]; the same on all ranks.
            Used only if causal or with a window or slopes, and needed then, except on a single rank, where the queries
            are by default the last of the sequence.
        kv_positions: Global positions of this rank's keys, [n_local] or [batch, n_local], in any order; likewise.
        kv_mask: Bool [n_local] or [batch, n_local], True where a key exists; None: all exist.
        kv_lengths: Integers [batch]: only the first so many local keys exist. None: all. On a GPU it is not looked at.
        block_tables: Integers [batch, pages of an entry]: where the keys of an entry lie, as in `local_attention`. On
            GPUs all ranks begin to give them in the same call, and change the size of pages in the same call.
        order: "any": the plan's own tree. "canonical": one tree over virtual shards, so that the bits do not depend on
            how many ranks there are; kv_positions [n_local] are needed then, on a GPU best in host memory.
        shards: Of canonical order, which virtual shard a position belongs to and which a rank owns; None:
            ShardMap(comm.size, virtual_shards=96), which has the same ones for any number of ranks.
        result: "all": every rank gets all heads. "heads": rank r gets the heads from r heads // P to
            (r + 1) heads // P, by a reduce-scatter that sends half as much; for a next step that is sharded by heads.
        wire: "float32": partials are those of `local_attention(exact="float32")`, and nothing rounds them on their
            way. "bfloat16": `out` is rounded once, and sent to all ranks in one step that every rank folds in float32;
            so any kernel may attend the shards. lse is float32 always.
        verify: True: in one call of 64 one head, another each time, is computed again in float64, and what must hold
            of all heads is checked, see `attention.decode.verification`; an integer: in one call of so many.
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
    if not isinstance(comm, Communicator):
        comm = as_communicator("tree_decode", comm)
    masking = UNMASKED
    if not (q_positions is kv_positions is kv_mask is kv_lengths is block_tables is None):
        masking = Masking(q_positions, kv_positions, kv_mask, kv_lengths, block_tables)
    arrays = q, k_shard, v_shard
    choices = spec, order, shards, result, wire, type(verify), verify, kv_positions is None, block_tables is None
    try:
        kind: Hashable = q.shape, q.dtype, q.device, k_shard.dtype, k_shard.shape[1], v_shard.shape[3], choices
    except (AttributeError, IndexError):
        kind = None  # no arrays of four axes, which is refused below
    steps: dict[Hashable, PreparedDecode] = state_of(comm).setdefault("steps", {})
    prepared = steps.get(kind)
    if prepared is None:
        options = DecodeOptions(order, shards, result, wire, verify)
        prepared = prepared_step("tree_decode", arrays, comm, spec, masking, options)
        if len(steps) >= STEPS_LIMIT:
            steps.clear()
        steps[kind] = prepared
    return prepared.run(arrays, masking, return_lse, out)
