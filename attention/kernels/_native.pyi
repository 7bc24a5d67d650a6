from collections.abc import Callable
from typing import Any

def merge_fold_address() -> int:
    """Return the address of the fold of LOGSUMEXP."""

# Arrays are buffers that follow each other as NumPy has them.
def bind_shares(
    out: Any,
    lse: Any,
    sum_out: Any,
    weight: Any,
    lost: Any,
    present: Any,
    product: Any,
    result_out: Any | None,
    result_lse: Any | None,
    ranks: int,
    /,
) -> tuple[Callable[[Any], bool], Callable[[Any], bool]]:
    """Bind what a rank adds for partials, relative to a reference, and what the sums give, to arrays that stay.

    Args:
        out: Float32 [rows, dim], read.
        lse: Float32 [rows], read; natural logarithm.
        sum_out: Float32 [rows, dim], written: out times the weight; then the sums are read there.
        weight: Float32 [rows], likewise, as are the others: the columns of `topocomm.extend.weigh`.
        lost: As there.
        present: As there.
        product: As there.
        result_out: Float32 [rows, dim], written; may be out. None, as result_lse: only what is added is asked for.
        result_lse: Float32 [rows], written; may be lse.
        ranks: How many shares are added.

    Returns:
        send(reference) writes the share, for a reference float64 [rows]; whether it alone would be precise.
        receive(reference): whether the sums are precise (`topocomm.extend.all_exact`); it writes the result where so.

    Raises:
        ValueError: Lengths do not fit.
    """

def bind_step(
    arrays: tuple[object, object, object],
    factors: tuple[float, float],
    of_torch: tuple[type, object],
    result: tuple[Callable[[], tuple[tuple[Any, dict[str, Any], Any], ...]], Any, bool],
    memories: tuple[tuple[tuple[tuple[Any], object, object], ...], object | None],
    reduction: tuple[Any, Any, int],
    counters: tuple[object | None, object | None, object | None],
    alike: tuple[object, dict[str, Any], tuple[str, ...], int],
    spent: object | None,
    /,
) -> tuple[Callable[..., None], Callable[[Any, Any], bool], Callable[[Any, Any, Any], Any]]:
    """Bind decode steps to the memory of keys and values; arrays are as `attend` takes them.

    Args:
        arrays: q [batch, heads, q_len, d], whose memory is not looked at, k [batch, kv_heads, n, d] and
            v [batch, kv_heads, n, d_v].
        factors: Scale and softcap, as `attend`.
        of_torch: `torch.Tensor`, and its attribute `__dlpack_c_exchange_api__`.
        result: Makes memory for some results, float32: of each a tensor, keywords of the reduction, which writes there,
            and its lse; the dtype into which a result is converted, or None; whether lse is given as well.
        memories: Where the partial goes: (what is sent, its out and lse), one or two, what is sent as a tuple of one;
            and int64 [1], the count of calls by which two take turns: after n calls the next one has number
            (n + 1) % 2.
        reduction: What merges what is sent, or None; what counts `dropped` calls, or None; their number now.
        counters: int64 [1] each: where tokens are counted, and rows of k and of v; or None.
        alike: As `attention.decode.bound_step.Alike`.
        spent: int64 [1], to which the nanoseconds of the kernel are added; None: nobody asks.

    Returns:
        begin(first, end, firsts, left, own, start, length, window, positions): as
            `attention.cache.storage_run.StorageRun` has them.
        append(k, v): counts a token; copies tensors [batch, kv_heads, 1, d or d_v] into row `end` where it is owned.
        attend(q, mask, options): as `attend` over the rows [first, end) on this thread, then the reduction; a tensor,
            or (tensor, lse); without a reduction lse is in the memory.
        Of another kind than was bound, append is False and attend None, and nothing is done.

    Raises:
        ValueError: As `attend`; rows do not lie in the memory.
    """

def attend(
    q: object,
    k: object,
    v: object,
    out: object,
    lse: object,
    scale: float,
    *,
    softcap: float = 0.0,
    slopes: object | None = None,
    visible: tuple[object, object, object, object] | None = None,
    order: object | None = None,
    pages: object | None = None,
    segments: object | None = None,
    first: int = 0,
    end: int = -1,
    threads: int = 1,
    processor: str | None = None,
) -> None:
    """Write the attention of query rows over keys; a row without keys is (0, -inf).

    Arrays come as DLPack capsules of host memory, which may be given again: they are not consumed.

    Args:
        q: [batch, heads, q_len, d], float32, bfloat16 or float16.
        k: [batch, kv_heads, n, d], elements side by side; with pages [pages, kv_heads, page size, d].
        v: [batch, kv_heads, n, d_v], of k's dtype; likewise.
        out: Contiguous float32 [segments, batch, heads, q_len, d_v].
        lse: Contiguous float32 [segments, batch, heads, q_len]; natural logarithm.
        scale: Factor on q.k.
        softcap: Scores s become softcap tanh(s / softcap); 0: they stay.
        slopes: float32 [heads]: scores lose slope times distance.
        visible: int64 (low, high, queries) [batch or 1, q_len] and positions [batch or 1, n]: a row sees the keys at
            positions from low to high; its own is in queries. Others are never read. None: all rows see all keys.
        order: int64 [batch or 1, any]: numbers of the keys as they are taken; None: as they lie.
        pages: int64 [batch or 1, pages of an entry]: where in k and v they are.
        segments: int64 [segments, 2]: from where to where in the order; None: one of all.
        first: First item of work; an item is a tile of `TILE_ROWS` query rows of a key head, over one segment.
        end: One past the last item; -1: all.
        threads: The most threads, the caller among them; they do not change the result's bits.
        processor: "avx512", "avx2" or "baseline", as far as the machine is one; None: the best one.

    Raises:
        ValueError: Sizes, strides, dtypes or indices do not fit.
        MemoryError: No memory for some tens of KiB per thread.
    """
