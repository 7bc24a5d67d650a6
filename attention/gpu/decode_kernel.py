"""Decode attention with split keys in one Triton kernel: partials of the splits, and their merge by who comes last.

One program attends BLOCK_M query rows that share a key head (all heads of the group, all queries: every key and value
byte is read once per key head and tile) over one split of the keys. With several splits each writes its state (maximum,
sum, unnormalised values) to scratch memory; the last of a tile to arrive merges them from first to last, so that the
result does not depend on who that was. The counter of arrivals is 0 again afterwards, so a captured graph can run
again.

Scores are kept in units of log2, lse leaves in natural logarithms. Weights are split in a high and a low part before
they multiply 16-bit values, so that the result has float32 accuracy whatever the dtype of K and V.
"""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl

from attention.gpu.capped_kernel import capped
from attention.gpu.rows_kernel import load_rows, store_rows

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)
FAR = tl.constexpr(1 << 29)


@triton.jit
def _product(weights, values, sums, SPLIT: tl.constexpr):
    """Adds weights @ values to the sums; float32 weights on 16-bit values in a high and a low part."""
    high = weights.to(values.dtype)
    sums = tl.dot(high, values, sums, input_precision="ieee")
    if SPLIT:
        low = (weights - high.to(tl.float32)).to(values.dtype)
        sums = tl.dot(low, values, sums, input_precision="ieee")
    return sums


@triton.jit
def _near(distance):
    """Distances as int32: those beyond 2^29 stay that far, so that differences of two do not overflow."""
    return tl.minimum(tl.maximum(distance, -FAR), FAR).to(tl.int32)


# What grows from token to token compiles nothing anew, but for the step from one split to several.
@triton.jit(
    do_not_specialize=[
        "n",
        "splits",
        "window",
        "table_batch",
        "q_positions_batch",
        "kv_positions_batch",
        "kv_mask_batch",
    ]
)
def decode_kernel(
    q,
    k,
    v,
    out,
    lse,
    scratch,
    scratch_state,
    arrivals,
    lengths,
    tables,
    q_positions,
    kv_positions,
    kv_mask,
    slopes,
    k_scales,
    v_scales,
    n,
    splits,
    scale,
    softcap,
    window,
    q_batch,
    q_head,
    q_row,
    k_batch,
    k_head,
    k_key,
    v_batch,
    v_head,
    v_key,
    table_batch,
    q_positions_batch,
    kv_positions_batch,
    kv_mask_batch,
    GROUP: tl.constexpr,
    Q_LEN: tl.constexpr,
    PAGE: tl.constexpr,
    KV_HEADS: tl.constexpr,
    D: tl.constexpr,
    D0: tl.constexpr,
    D1: tl.constexpr,
    DV: tl.constexpr,
    DV0: tl.constexpr,
    DV1: tl.constexpr,
    CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    DOT: tl.constexpr,
    SPLIT_WEIGHTS: tl.constexpr,
    MANY: tl.constexpr,
    SHARED: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Grid (tiles of rows, splits, batch x KV_HEADS). Pointers that are None are not there.

    Args:
        q: [batch, heads, Q_LEN, D], last axis dense; strides in elements.
        k: [batch, KV_HEADS, n, D], or with tables [pages, KV_HEADS, page, D]; last axis dense.
        v: Likewise, DV; not read if SHARED: then it is the first columns of k.
        out: float32 [batch, heads, Q_LEN, DV], contiguous.
        lse: float32 [batch, heads, Q_LEN], contiguous.
        scratch: float32 [batch x KV_HEADS, tiles, splits, BLOCK_M, DV]; used if splits > 1.
        scratch_state: float32 [batch x KV_HEADS, tiles, splits, 2, BLOCK_M]: maximum (log2) and sum.
        arrivals: int32 [batch x KV_HEADS, tiles], 0 before and after.
        lengths: int32 or int64 [batch]: keys that exist, taken as 0 below 0 and as n beyond n; None: n.
        tables: int32 or int64 [batch, pages of an entry].
        q_positions, kv_positions: int64, batch stride 0 where all entries have the same. None: key i is at i, the
            queries are the last ones.
        kv_mask: int8 [batch or 1, n], 0 where no key is.
        slopes: float32 [heads], ALiBi.
        k_scales, v_scales: float32 [KV_HEADS]: factors of 8-bit K and V.
    """
    tile = tl.program_id(0)
    split = tl.program_id(1)
    pair = tl.program_id(2)
    entry = (pair // KV_HEADS).to(tl.int64)
    kv_head = pair % KV_HEADS

    ROWS: tl.constexpr = GROUP * Q_LEN
    rows = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    ok = rows < ROWS
    head = kv_head * GROUP + rows // Q_LEN
    query = rows % Q_LEN
    q_at = entry * q_batch + head.to(tl.int64) * q_head + query.to(tl.int64) * q_row
    q0 = load_rows(q, q_at, ok, D, 0, D0).to(DOT)
    if D1 > 0:
        q1 = load_rows(q, q_at, ok, D, D0, D1).to(DOT)
    factor = scale
    if k_scales is not None:
        factor = factor * tl.load(k_scales + kv_head)
    if not SOFTCAP and slopes is None:
        factor = factor * LOG2_E
    if slopes is not None:
        slope = tl.load(slopes + head, mask=ok, other=0.0)

    keys_here = n
    if lengths is not None:
        keys_here = tl.minimum(tl.maximum(tl.load(lengths + entry), 0), n).to(tl.int32)
    POSITIONS: tl.constexpr = CAUSAL or WINDOW or slopes is not None
    # whether some key between the first and the last that rows see is seen by none
    GAPS: tl.constexpr = WINDOW and q_positions is not None and Q_LEN > 1
    first, last = 0, keys_here
    if POSITIONS:
        if q_positions is not None:
            base = tl.load(q_positions + entry * q_positions_batch)
            there_q = tl.load(q_positions + entry * q_positions_batch + query, mask=ok, other=0)
            where_q = _near(there_q - base)
        else:
            base = (keys_here - Q_LEN).to(tl.int64)
            where_q = query
            if WINDOW:  # what lies before all windows is passed over
                first = tl.maximum(0, keys_here - Q_LEN - window + 1)
        lowest = tl.min(tl.where(ok, where_q, FAR))
        highest = tl.max(tl.where(ok, where_q, -FAR))
    blocks = tl.cdiv(tl.maximum(last - first, 0), BLOCK_N)
    share, more = blocks // splits, blocks % splits  # the first so many splits have one block more
    start = first + (split * share + tl.minimum(split, more)) * BLOCK_N
    stop = tl.minimum(start + tl.where(split < more, share + 1, share) * BLOCK_N, last)

    k_at = k + kv_head.to(tl.int64) * k_head
    v_at = v + kv_head.to(tl.int64) * v_head
    if tables is None:
        k_at += entry * k_batch
        v_at += entry * v_batch
    lanes = tl.arange(0, BLOCK_N)
    top = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    acc0 = tl.zeros((BLOCK_M, DV0), tl.float32)
    if DV1 > 0:
        acc1 = tl.zeros((BLOCK_M, DV1), tl.float32)
    for begin in range(start, stop, BLOCK_N):
        keys = begin + lanes
        there = keys < stop
        if kv_mask is not None:
            there = there & (tl.load(kv_mask + entry * kv_mask_batch + keys, mask=there, other=0) != 0)
        if POSITIONS:
            if kv_positions is not None:
                where_k = _near(tl.load(kv_positions + entry * kv_positions_batch + keys, mask=there, other=0) - base)
            else:
                where_k = keys - (keys_here - Q_LEN)
            # a key that no row sees is not read: its weights are 0, what it holds does not matter, NaN neither
            if CAUSAL:
                there = there & (where_k <= highest)
            if WINDOW:
                there = there & (lowest - where_k < window)
                if not CAUSAL:
                    there = there & (where_k - highest < window)
        if tables is not None:
            number = tl.load(tables + entry * table_batch + keys // PAGE, mask=keys < stop, other=0).to(tl.int64)
            inside = (keys % PAGE).to(tl.int64)
            k_rows = number * k_batch + inside * k_key
            v_rows = number * v_batch + inside * v_key
            k_block, v_block = k_at, v_at
        else:  # what changes is one 64-bit address, the same for all lanes
            k_rows, v_rows = lanes * k_key, lanes * v_key
            k_block, v_block = k_at + tl.cast(begin, tl.int64) * k_key, v_at + tl.cast(begin, tl.int64) * v_key
        k0 = load_rows(k_block, k_rows, there, D, 0, D0).to(DOT)
        scores = tl.dot(q0, tl.trans(k0), input_precision="ieee")
        if D1 > 0:
            k1 = load_rows(k_block, k_rows, there, D, D0, D1).to(DOT)
            scores = tl.dot(q1, tl.trans(k1), scores, input_precision="ieee")
        scores = scores * factor  # in units of log2, if nothing else happens to them
        if SOFTCAP:
            scores = capped(scores, softcap)
        seen = there[None, :]
        if POSITIONS:
            behind = where_q[:, None] - where_k[None, :]
            if CAUSAL:
                seen = seen & (behind >= 0)
            if WINDOW:
                seen = seen & (behind < window)
                if not CAUSAL:
                    seen = seen & (-behind < window)
            if slopes is not None:
                scores = scores - slope[:, None] * tl.abs(behind).to(tl.float32)
        if SOFTCAP or slopes is not None:
            scores = scores * LOG2_E
        scores = tl.where(seen, scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        level = tl.where(higher == float("-inf"), 0.0, higher)
        weights = tl.exp2(scores - level[:, None])
        fade = tl.exp2(top - level)
        total = total * fade + tl.sum(weights, 1)
        top = higher
        v0 = k0 if SHARED else load_rows(v_block, v_rows, there, DV, 0, DV0).to(DOT)
        if GAPS:
            wanted = tl.max((seen & ok[:, None]).to(tl.int32), 0) != 0
            v0 = tl.where(wanted[:, None], v0, 0.0)
        acc0 = _product(weights, v0, acc0 * fade[:, None], SPLIT_WEIGHTS)
        if DV1 > 0:
            v1 = k1 if SHARED else load_rows(v_block, v_rows, there, DV, DV0, DV1).to(DOT)
            if GAPS:
                v1 = tl.where(wanted[:, None], v1, 0.0)
            acc1 = _product(weights, v1, acc1 * fade[:, None], SPLIT_WEIGHTS)

    merges = True
    if MANY:
        tiles = tl.num_programs(0)
        slot = (pair * tiles + tile).to(tl.int64) * splits + split
        its_rows = tl.arange(0, BLOCK_M)
        at = (slot * BLOCK_M + its_rows) * DV
        store_rows(scratch, at, ok, acc0, DV, 0, DV0)
        if DV1 > 0:
            store_rows(scratch, at, ok, acc1, DV, DV0, DV1)
        tl.store(scratch_state + slot * 2 * BLOCK_M + its_rows, top, mask=ok)
        tl.store(scratch_state + slot * 2 * BLOCK_M + BLOCK_M + its_rows, total, mask=ok)
        tl.debug_barrier()  # all threads have stored before one of them says so
        merges = tl.atomic_add(arrivals + pair * tiles + tile, 1, sem="acq_rel") == splits - 1
        if merges:
            tl.debug_barrier()
            tl.store(arrivals + pair * tiles + tile, 0)
            top = tl.full((BLOCK_M,), float("-inf"), tl.float32)
            total = tl.zeros((BLOCK_M,), tl.float32)
            acc0 = tl.zeros((BLOCK_M, DV0), tl.float32)
            if DV1 > 0:
                acc1 = tl.zeros((BLOCK_M, DV1), tl.float32)
            for other in tl.range(0, splits, loop_unroll_factor=4):  # loads of four in flight
                slot = (pair * tiles + tile).to(tl.int64) * splits + other
                at = (slot * BLOCK_M + its_rows) * DV
                its_top = tl.load(scratch_state + slot * 2 * BLOCK_M + its_rows, mask=ok, other=float("-inf"))
                its_total = tl.load(scratch_state + slot * 2 * BLOCK_M + BLOCK_M + its_rows, mask=ok, other=0.0)
                higher = tl.maximum(top, its_top)
                level = tl.where(higher == float("-inf"), 0.0, higher)
                fade = tl.exp2(top - level)
                gain = tl.exp2(its_top - level)
                total = total * fade + its_total * gain
                top = higher
                acc0 = acc0 * fade[:, None] + load_rows(scratch, at, ok, DV, 0, DV0) * gain[:, None]
                if DV1 > 0:
                    acc1 = acc1 * fade[:, None] + load_rows(scratch, at, ok, DV, DV0, DV1) * gain[:, None]
    if merges:
        none = total == 0  # not so where NaN was seen, which goes through
        sum_of_weights = tl.where(none, 1.0, total)
        share_of_one = 1.0 / sum_of_weights
        if v_scales is not None:
            share_of_one = share_of_one * tl.load(v_scales + kv_head)
        written = tl.where(none, float("-inf"), (top + tl.log2(sum_of_weights)) * LN_2)
        row = (entry * KV_HEADS * GROUP + head) * Q_LEN + query
        store_rows(out, row * DV, ok, acc0 * share_of_one[:, None], DV, 0, DV0)
        if DV1 > 0:
            store_rows(out, row * DV, ok, acc1 * share_of_one[:, None], DV, DV0, DV1)
        tl.store(lse + row, written, mask=ok)
