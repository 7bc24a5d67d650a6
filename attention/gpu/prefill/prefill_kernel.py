"""Prefill attention in one Triton kernel: blocks of queries pass over blocks of keys with an online softmax.

One program attends BLOCK_M query rows of one head over all keys they can see, and leaves a partial or merges it onto
the one that is there. Blocks of keys that all rows see are passed first, without masks; then those that some rows see.
Which blocks these are follows from the arithmetic of contiguous positions, or, for positions in any order, from lists
(`attention.gpu.prefill.block_lists`). Blocks that no row sees are not touched.

Scores are kept in units of log2, lse leaves in natural logarithms. Scores and sums are float32; weights are rounded to
the dtype of K and V before they multiply values, as in FlashAttention (Dao 2023, arXiv 2307.08691).
"""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl

from attention.gpu.rows_kernel import capped, load_rows
from attention.gpu.rows_kernel import operand as _operand

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)
NEVER = tl.constexpr(2147483647)  # attention.gpu.prefill.block_lists.NEVER: a key here is seen by no query


@triton.jit
def _leave(
    start,
    lanes,
    step,
    ok,
    values,
    empty,
    weight,
    weight_before,
    WIDTH: tl.constexpr,
    FROM: tl.constexpr,
    BLOCK: tl.constexpr,
    MERGE: tl.constexpr,
):
    """Store columns FROM to WIDTH of the result, float32; merged by weights onto what is there."""
    columns = FROM + tl.arange(0, BLOCK)
    mask = ok[:, None] & (columns < WIDTH)[None, :]
    addresses = start + (lanes[:, None] * step + columns[None, :])
    values = tl.where(empty[:, None], 0.0, values)  # what others of the block see may be NaN
    if MERGE:
        # a part of weight 0 is ignored, whatever it holds
        stored = tl.load(addresses, mask=mask, other=0.0) * weight_before[:, None]
        values = values * weight[:, None]
        merged = tl.where((weight == 0)[:, None], stored, stored + values)
        values = tl.where((weight_before == 0)[:, None], values, merged)
    tl.store(addresses, values, mask=mask)


# What the length of a prompt decides compiles nothing anew, nor where lse and lengths begin in an array.
@triton.jit(
    do_not_specialize=[
        "q_len",
        "n",
        "offset",
        "window",
        "blocks",
        "pairs",
        "section",
        "list_blocks",
        "lse_batch",
        "lse_head",
        "low_batch",
        "keys_at_batch",
        "lists_batch",
    ],
    do_not_specialize_on_alignment=["lse", "lengths"],
)
def prefill_kernel(
    q,
    k,
    v,
    out,
    lse,
    lengths,
    slopes,
    low,
    high,
    queries,
    keys_at,
    lists,
    counts,
    q_len,
    n,
    offset,
    window,
    scale,
    softcap,
    blocks,
    pairs,
    section,
    list_blocks,
    q_batch,
    q_head,
    q_row,
    k_batch,
    k_head,
    k_key,
    v_batch,
    v_head,
    v_key,
    out_batch,
    out_head,
    out_row,
    lse_batch,
    lse_head,
    lse_row,
    low_batch,
    keys_at_batch,
    lists_batch,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    D0: tl.constexpr,
    D1: tl.constexpr,
    DV: tl.constexpr,
    DV0: tl.constexpr,
    DV1: tl.constexpr,
    WIDTH: tl.constexpr,
    CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    LAST: tl.constexpr,
    FOLDED: tl.constexpr,
    MERGE: tl.constexpr,
    DOT: tl.constexpr,
    INTERPRETED: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Grid (blocks x pairs): one program per block of rows of a pair (batch entry, head).

    Pointers that are None are not there. Strides are in elements; the last axes of q, k, v and out are dense.

    Args:
        q: [batch, HEADS, q_len, D].
        k: [batch, HEADS / GROUP, n, D].
        v: As k, DV.
        out: float32 [batch, HEADS, q_len, WIDTH], WIDTH at most DV: columns of v beyond it are zeros.
        lse: float32 [batch, HEADS, q_len].
        lengths: int32 or int64 [batch]: keys that exist, at most n; None: n.
        slopes: float32 [HEADS], ALiBi.
        low, high, queries, keys_at: int32, as in `BlockLists`: a row sees a key iff low <= keys_at <= high. low_batch
            and keys_at_batch are 0 where all entries have the same. None: positions are contiguous.
        lists: int32 [batch or 1, blocks, list_blocks]: numbers of the blocks of keys to pass, with `low`.
        counts: int32 [batch or 1, blocks, 2]: how many of them all rows see, which come first; how many some see.
        q_len: Rows of an entry.
        offset: Position of the first query less that of the first key; not used if LAST: the queries are the last.
        window: As in Spec, if WINDOW.
        scale: As in Spec; above 0 if FOLDED, which is for scores without softcap and slopes.
        section: Pairs that run side by side: all blocks of theirs run before those of the next.
    """
    # The longest blocks first, so that none is left over at the end: in causal attention the last rows.
    program = tl.program_id(0)
    first_pair = program // (section * blocks) * section
    abreast = tl.minimum(section, pairs - first_pair)
    place = program - first_pair * blocks
    block = blocks - 1 - place // abreast
    pair = first_pair + place % abreast
    entry = (pair // HEADS).to(tl.int64)
    head = pair % HEADS
    kv_head = (head // GROUP).to(tl.int64)

    keys_here = n
    if lengths is not None:
        keys_here = tl.minimum(tl.maximum(tl.load(lengths + entry), 0), n).to(tl.int32)
    if LAST:
        offset = keys_here - q_len

    first_row = block * BLOCK_M
    last_row = tl.minimum(first_row + BLOCK_M, q_len) - 1
    lanes = tl.arange(0, BLOCK_M)
    rows = first_row + lanes
    ok = rows < q_len
    q_at = q + entry * q_batch + head.to(tl.int64) * q_head + first_row.to(tl.int64) * q_row
    q0 = _operand(load_rows(q_at, lanes * q_row, ok, D, 0, D0, True), DOT, INTERPRETED)
    if D1 > 0:
        q1 = _operand(load_rows(q_at, lanes * q_row, ok, D, D0, D1, True), DOT, INTERPRETED)

    if low is not None:
        row_low = tl.load(low + entry * low_batch + rows, mask=ok, other=NEVER)
        row_high = tl.load(high + entry * low_batch + rows, mask=ok, other=-NEVER)
        row_at = tl.load(queries + entry * low_batch + rows, mask=ok, other=0)
        list_at = lists + entry * lists_batch * list_blocks + block.to(tl.int64) * list_blocks
        count_at = counts + entry * lists_batch * 2 + block.to(tl.int64) * 2
        full_count = tl.load(count_at)
        some_count = tl.load(count_at + 1)
    else:
        # Keys [seen_from, seen_to) are seen by some row, [full_from, full_to) by all.
        row_at = rows + offset
        seen_from, seen_to, full_from, full_to = 0, keys_here, 0, keys_here
        if CAUSAL:
            seen_to = tl.minimum(seen_to, last_row + offset + 1)
            full_to = tl.minimum(full_to, first_row + offset + 1)
        if WINDOW:
            seen_from = tl.maximum(0, first_row + offset - window + 1)
            full_from = tl.maximum(0, last_row + offset - window + 1)
            if not CAUSAL:
                seen_to = tl.minimum(seen_to, last_row + offset + window)
                full_to = tl.minimum(full_to, first_row + offset + window)
        first_block = seen_from // BLOCK_N
        end_block = tl.maximum(first_block, tl.cdiv(tl.maximum(seen_to, 0), BLOCK_N))
        full_block = tl.minimum(tl.cdiv(full_from, BLOCK_N), end_block)
        after_full = tl.maximum(full_block, tl.minimum(tl.maximum(full_to, 0) // BLOCK_N, end_block))
        full_count = after_full - full_block
        some_count = (full_block - first_block) + (end_block - after_full)

    factor = 1.0
    if FOLDED:
        factor = scale * LOG2_E
    if slopes is not None:
        slope = tl.load(slopes + head)
    k_at = k + entry * k_batch + kv_head * k_head
    v_at = v + entry * v_batch + kv_head * v_head
    key_lanes = tl.arange(0, BLOCK_N)
    top = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    acc0 = tl.zeros((BLOCK_M, DV0), tl.float32)
    if DV1 > 0:
        acc1 = tl.zeros((BLOCK_M, DV1), tl.float32)
    for masked in tl.static_range(2):  # 0: blocks that all rows see; 1: those that some see
        for i in range(0, some_count if masked else full_count):
            if low is not None:
                number = tl.load(list_at + (full_count + i if masked else i))
            elif masked:
                number = first_block + i
                number = tl.where(number < full_block, number, number + full_count)
            else:
                number = full_block + i
            begin = number * BLOCK_N
            keys = begin + key_lanes
            exists = keys < keys_here
            wanted = exists
            if low is not None:
                if masked or slopes is not None:
                    key_at = tl.load(keys_at + entry * keys_at_batch + keys, mask=exists, other=NEVER)
            else:
                key_at = keys
            if masked:
                if low is not None:
                    visible = (row_low[:, None] <= key_at[None, :]) & (key_at[None, :] <= row_high[:, None])
                    wanted = tl.max(visible.to(tl.int32), 0) != 0
                else:
                    visible = exists[None, :]
                    if CAUSAL:
                        visible = visible & (key_at[None, :] <= row_at[:, None])
                    if WINDOW:
                        visible = visible & (key_at[None, :] > row_at[:, None] - window)
                        if not CAUSAL:
                            visible = visible & (key_at[None, :] < row_at[:, None] + window)
                    wanted = (keys >= seen_from) & (keys < seen_to)
            k_block = k_at + begin.to(tl.int64) * k_key
            k0 = _operand(load_rows(k_block, key_lanes * k_key, exists, D, 0, D0, masked), DOT, INTERPRETED)
            scores = tl.dot(q0, tl.trans(k0), input_precision="ieee")
            if D1 > 0:
                k1 = _operand(load_rows(k_block, key_lanes * k_key, exists, D, D0, D1, masked), DOT, INTERPRETED)
                scores = tl.dot(q1, tl.trans(k1), scores, input_precision="ieee")
            if not FOLDED:
                scores = scores * scale
                if SOFTCAP:
                    scores = capped(scores, softcap)
                if slopes is not None:
                    scores = scores - slope * tl.abs(row_at[:, None] - key_at[None, :]).to(tl.float32)
                scores = scores * LOG2_E
            if masked:
                scores = tl.where(visible, scores, float("-inf"))
            higher = tl.maximum(top, tl.max(scores, 1) * factor)
            level = tl.where(higher == float("-inf"), 0.0, higher)  # rows that have seen nothing: 2^(-inf - 0) = 0
            weights = tl.exp2(scores * factor - level[:, None])
            fade = tl.exp2(top - level)
            total = total * fade + tl.sum(weights, 1)
            top = higher
            # What a key holds that no row sees does not matter, NaN neither: its weights are 0, its values must be.
            rounded = _operand(weights, DOT, INTERPRETED)
            v_block = v_at + begin.to(tl.int64) * v_key
            v0 = _operand(load_rows(v_block, key_lanes * v_key, wanted, DV, 0, DV0, masked), DOT, INTERPRETED)
            acc0 = tl.dot(rounded, v0, acc0 * fade[:, None], input_precision="ieee")
            if DV1 > 0:
                v1 = _operand(load_rows(v_block, key_lanes * v_key, wanted, DV, DV0, DV1, masked), DOT, INTERPRETED)
                acc1 = tl.dot(rounded, v1, acc1 * fade[:, None], input_precision="ieee")

    empty = total == 0  # NaN is not
    share = 1.0 / tl.where(empty, 1.0, total)
    written = tl.where(empty, float("-inf"), (top + tl.log2(tl.where(empty, 1.0, total))) * LN_2)
    lse_at = lse + entry * lse_batch + head.to(tl.int64) * lse_head + first_row.to(tl.int64) * lse_row + lanes * lse_row
    weight = tl.full((BLOCK_M,), 1.0, tl.float32)
    weight_before = weight
    if MERGE:
        lse_before = tl.load(lse_at, mask=ok, other=float("-inf"))
        nothing_before = lse_before == float("-inf")
        apart = lse_before - written
        lighter = tl.exp2(-tl.abs(apart) * LOG2_E)
        heavy, light = 1.0 / (1.0 + lighter), lighter / (1.0 + lighter)
        # an empty part leaves the other as it is, bit for bit
        weight_before = tl.where(apart >= 0, heavy, light)
        weight_before = tl.where(nothing_before, 0.0, tl.where(empty, 1.0, weight_before))
        weight = tl.where(apart >= 0, light, heavy)
        weight = tl.where(nothing_before, 1.0, tl.where(empty, 0.0, weight))
        merged = tl.maximum(lse_before, written) + tl.log2(1.0 + lighter) * LN_2
        written = tl.where(nothing_before, written, tl.where(empty, lse_before, merged))
    tl.store(lse_at, written, mask=ok)
    out_at = out + entry * out_batch + head.to(tl.int64) * out_head + first_row.to(tl.int64) * out_row
    _leave(out_at, lanes, out_row, ok, acc0 * share[:, None], empty, weight, weight_before, WIDTH, 0, DV0, MERGE)
    if DV1 > 0:
        _leave(out_at, lanes, out_row, ok, acc1 * share[:, None], empty, weight, weight_before, WIDTH, DV0, DV1, MERGE)
