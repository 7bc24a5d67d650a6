"""Tree attention: the partial of this rank's keys, then one planned reduction over the ranks."""

from __future__ import annotations

from typing import Any

from attention.arrays import Masking
from attention.communicators import prepared_allreduce
from attention.local.cpu import attend
from attention.merge import LOGSUMEXP
from attention.partial import Partial
from attention.sharded import Options, ShardedCall
from attention.spec import Spec


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
    return_lse: bool = False,
    out: Any = None,
) -> Any:
    """Attention of replicated queries over keys that are sharded over the ranks; the same bits on every rank.

    Every rank attends its own keys and the partials are merged by one all-reduce with LOGSUMEXP, on the plan that
    topocomm chooses for the machine: batch x heads x q_len x (d_v + 1) float32 per message, whatever the context
    length. Shyam et al., "Tree Attention" (2024), section 5, with its three all-reduces made one.

    Args:
        q: Queries [batch, heads, q_len, d], float32, float16 or bfloat16, NumPy or torch (CPU); the same on all ranks.
        k_shard: This rank's keys [batch, kv_heads, n_local, d]; n_local may differ between ranks and may be 0.
        v_shard: This rank's values [batch, kv_heads, n_local, d_v].
        comm: A topocomm.Communicator; or an mpi4py communicator, a torch ProcessGroup or a 1-D DeviceMesh (wrapped at
            its first use, and kept).
        spec: Which attention; None: Spec().
        q_positions: Global positions of the queries, integers [q_len] or [batch, q_len]; the same on all ranks.
            Used only if causal, and needed then, except on a single rank, where the queries are by default the
            last of the sequence.
        kv_positions: Global positions of this rank's keys, [n_local] or [batch, n_local], in any order; likewise.
        kv_mask: Bool [n_local] or [batch, n_local], True where a key exists; None: all exist.
        kv_lengths: Integers [batch]: only the first so many local keys exist. None: all.
        return_lse: Return Partial(out, lse) instead of out.
        out: Array of q's kind and dtype [batch, heads, q_len, d_v] for the result; may be q.

    Returns:
        out [batch, heads, q_len, d_v] of q's kind and dtype; with `return_lse` a Partial with lse float32
        [batch, heads, q_len]. Queries that see no key on any rank get 0 and -inf.

    Collective: every rank calls it with the same shapes. If one rank raises, the others learn of it at their next
    wait (threads: at once; MPI: the job ends with the traceback) or at the deadline.

    Raises:
        OperatorError: This rank's arguments do not fit, or positions are missing.
        MismatchError: Ranks differ in batch, heads, q_len or d_v.
        DeadlineError, RankFailedError: Another rank did not come, or failed.

    Accuracy: scores, softmax and merges are float32; |out - exact| <= 1e-5 max |v| for float32 inputs.
    """
    masking = Masking(q_positions, kv_positions, kv_mask, kv_lengths)
    options = Options(spec, masking, return_lse, out)
    call = ShardedCall.begin("tree_decode", q, (k_shard, v_shard), comm, options)
    merged = call.merged._asdict()
    reduction = prepared_allreduce(call.comm, merged, LOGSUMEXP)
    # Where the plan sends the payload whole, the partial is written straight into the send buffer.
    partial = merged if reduction.input is None else reduction.input
    attend(call.inputs, Partial(**partial))
    reduction(partial, out=merged)
    return call.finish()
