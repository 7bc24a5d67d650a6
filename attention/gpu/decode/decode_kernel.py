"""Decode attention in one Triton kernel: partials of parts of the keys, merged by the last program to arrive.

A tile is BLOCK_M query rows that share a key head (all heads of the group, all queries: every key and value byte is
read once per key head and tile). Its keys are cut in parts: the same number for all tiles, one program each; or, where
entries have lengths of their own (FLAT), what the ranges of programs make of it (`schedule_kernel`), and a program
attends parts of several tiles. Of several parts each writes its state (maximum, sum, unnormalised values) to scratch
memory; the last of a tile to arrive merges them from first to last, so that the result does not depend on who that
was. The counter of arrivals is 0 again afterwards, so a captured graph can run again.

Scores are kept in units of log2, lse leaves in natural logarithms. Weights are split in a high and a low part before
they multiply 16-bit values, so that the result has float32 accuracy whatever the dtype of K and V. Keys and values of 8
bits are multiplied as float16, which holds them exactly; queries of bfloat16, which float16 may not hold, are scaled by
a power of two for each row.
"""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl

from attention.gpu.decode.schedule_kernel import blocks_of, first_key, keys_within, part_of_tile, range_of_program
from attention.gpu.rows_kernel import capped, load_rows, operand, store_rows

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)
FAR = tl.constexpr(1 << 29)
LIFT = tl.constexpr(32768.0)
"""float16 weights, at most 1, are multiplied by this: what is less than 2^-25 would be 0, and many of them count."""


@triton.jit
def _product(weights, values, sums, DOT: tl.constexpr, INTERPRETED: tl.constexpr):
    """Adds weights @ values to the sums; float32 weights on 16-bit values in a high and a low part."""
    high = operand(weights, DOT, INTERPRETED)
    sums = tl.dot(high, values, sums, input_precision="ieee")
    if DOT != tl.float32:  # noqa: SIM300
        low = operand(weights - high.to(tl.float32), DOT, INTERPRETED)
        sums = tl.dot(low, values, sums, input_precision="ieee")
    return sums


@triton.jit
def _scales_to_float16(highest):
    """Powers of two that bring rows of this greatest |item| to 2^14 and more, below 2^15, and back.

    Rows of less than 2^-100 stay less, so that both fit float32; inf and NaN go through.
    """
    exponent = tl.maximum((highest.to(tl.int32, bitcast=True) >> 23) - 127, -100)
    up, back = (141 - exponent) << 23, (113 + exponent) << 23
    return up.to(tl.float32, bitcast=True), back.to(tl.float32, bitcast=True)


@triton.jit
def _slot(first, part, FLAT: tl.constexpr):
    """Where a part of a tile lies in the scratch memory.

    `first` is the place of the tile's first part; if FLAT the first program, which has two: one for a tile that ends
    in its range, one for the tile that begins there and ends in another's.
    """
    if FLAT:
        return 2 * (first + part) + 1 - tl.minimum(part, 1)
    return first + part


@triton.jit
def _near(distance):
    """Distances as int32: those beyond 2^29 stay that far, so that differences of two do not overflow."""
    return tl.minimum(tl.maximum(distance, -FAR), FAR).to(tl.int32)


# What grows from token to token compiles nothing anew, but for the step from one split to several; nor do positions,
# masks, lengths and lse that begin anywhere in an array: strides of any size hide their alignment anyway.
@triton.jit(
    do_not_specialize=[
        "n",
        "batch",
        "splits",
        "window",
        "table_batch",
        "q_positions_batch",
        "kv_positions_batch",
        "kv_mask_batch",
    ],
    do_not_specialize_on_alignment=["lse", "lengths", "tables", "q_positions", "kv_positions", "kv_mask"],
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
    batch,
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
    INTERPRETED: tl.constexpr,
    MANY: tl.constexpr,
    FLAT: tl.constexpr,
    FEWEST: tl.constexpr,
    AHEAD: tl.constexpr,
    SHARED: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Grid (tiles of rows, splits, batch x KV_HEADS); if FLAT (programs). Pointers that are None are not there.

    Args:
        q: [batch, heads, Q_LEN, D], last axis dense; strides in elements.
        k: [batch, KV_HEADS, n, D], or with tables [pages, KV_HEADS, page, D]; last axis dense.
        v: Likewise, DV; not read if SHARED: then it is the first columns of k.
        out: float32 [batch, heads, Q_LEN, DV], contiguous.
        lse: float32 [batch, heads, Q_LEN], contiguous.
        scratch: float32 [batch x KV_HEADS, tiles, splits, BLOCK_M, DV]; if FLAT [programs, 2, BLOCK_M, DV]; used if
            MANY.
        scratch_state: float32 [as scratch, 2, BLOCK_M]: maximum (log2) and sum.
        arrivals: int32 [batch x KV_HEADS, tiles], 0 before and after.
        lengths: int32 or int64 [batch]: keys that exist, taken as 0 below 0 and as n beyond n; None: n.
        tables: int32 or int64 [batch, pages of an entry].
        q_positions, kv_positions: int64, batch stride 0 where all entries have the same. None: key i is at i, the
            queries are the last ones.
        kv_mask: int8 [batch or 1, n], 0 where no key is.
        slopes: float32 [heads], ALiBi.
        k_scales, v_scales: float32 [KV_HEADS]: factors of 8-bit K and V.
        batch: Entries.
        splits: Parts of a tile, if not FLAT.
        DOT: In which dtype matrices are multiplied; float16 for 8-bit K and V.
        MANY: Whether there are tiles of several parts.
        FLAT: Whether programs have ranges of blocks; needs lengths and MANY.
        FEWEST: Blocks of a range at least.
        AHEAD: States that a merge loads before it folds them.
    """
    ROWS: tl.constexpr = GROUP * Q_LEN
    TILES: tl.constexpr = (ROWS + BLOCK_M - 1) // BLOCK_M
    POSITIONS: tl.constexpr = CAUSAL or WINDOW or slopes is not None
    # whether some key between the first and the last that rows see is seen by none
    GAPS: tl.constexpr = WINDOW and q_positions is not None and Q_LEN > 1
    FROM_WINDOW: tl.constexpr = WINDOW and q_positions is None  # what lies before all windows is passed over
    LIFTED: tl.constexpr = DOT == tl.float16  # noqa: SIM300
    SCALED: tl.constexpr = LIFTED and q.dtype.element_ty == tl.bfloat16

    meets, number, tile_start, share = 1, tl.program_id(2) * TILES + tl.program_id(0), 0, 0
    if FLAT:
        meets, number, tile_start, share = range_of_program(
            lengths, batch, n, window, KV_HEADS * TILES, Q_LEN, FROM_WINDOW, BLOCK_N, FEWEST
        )
    for _ in tl.range(0, meets, disable_licm=True):
        pair, tile = number // TILES, number % TILES
        entry = (pair // KV_HEADS).to(tl.int64)
        kv_head = pair % KV_HEADS
        rows = tile * BLOCK_M + tl.arange(0, BLOCK_M)
        ok = rows < ROWS
        head = kv_head * GROUP + rows // Q_LEN
        query = rows % Q_LEN
        factor = scale
        if k_scales is not None:
            factor = factor * tl.load(k_scales + kv_head)
        if not SOFTCAP and slopes is None:
            factor = factor * LOG2_E
        if slopes is not None:
            slope = tl.load(slopes + head, mask=ok, other=0.0)
        q_at = entry * q_batch + head.to(tl.int64) * q_head + query.to(tl.int64) * q_row
        q0 = load_rows(q, q_at, ok, D, 0, D0)
        if D1 > 0:
            q1 = load_rows(q, q_at, ok, D, D0, D1)
        if SCALED:
            highest = tl.max(tl.abs(q0.to(tl.float32)), 1)
            if D1 > 0:
                highest = tl.maximum(highest, tl.max(tl.abs(q1.to(tl.float32)), 1))
            to_float16, back = _scales_to_float16(highest)
            factor = factor * back[:, None]
            q0 = q0.to(tl.float32) * to_float16[:, None]
            if D1 > 0:
                q1 = q1.to(tl.float32) * to_float16[:, None]
        q0 = operand(q0, DOT, INTERPRETED)
        if D1 > 0:
            q1 = operand(q1, DOT, INTERPRETED)

        last = n
        if lengths is not None:
            last = keys_within(tl.load(lengths + entry), n)
        first = first_key(last, window, Q_LEN, FROM_WINDOW)
        if POSITIONS:
            if q_positions is not None:
                base = tl.load(q_positions + entry * q_positions_batch)
                q_position = tl.load(q_positions + entry * q_positions_batch + query, mask=ok, other=0)
                q_offset = _near(q_position - base)
            else:
                base = (last - Q_LEN).to(tl.int64)
                q_offset = query
            lowest = tl.min(tl.where(ok, q_offset, FAR))
            highest_q = tl.max(tl.where(ok, q_offset, -FAR))
        if FLAT:
            blocks = blocks_of(last, window, Q_LEN, FROM_WINDOW, BLOCK_N)
            from_block, to_block, first_slot, parts = part_of_tile(tile_start, blocks, share)
            part = tl.program_id(0) - first_slot
            tile_start += blocks
        else:
            parts, part, first_slot = splits, tl.program_id(1), number * splits
            blocks = tl.cdiv(last - first, BLOCK_N)
            each, more = blocks // splits, blocks % splits  # the first so many parts have one block more
            from_block = part * each + tl.minimum(part, more)
            to_block = from_block + tl.where(part < more, each + 1, each)
        start = first + from_block * BLOCK_N
        stop = tl.minimum(first + to_block * BLOCK_N, last)

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
            exists = keys < stop
            if kv_mask is not None:
                exists = exists & (tl.load(kv_mask + entry * kv_mask_batch + keys, mask=exists, other=0) != 0)
            if POSITIONS:
                if kv_positions is not None:
                    k_position = tl.load(kv_positions + entry * kv_positions_batch + keys, mask=exists, other=0)
                    k_offset = _near(k_position - base)
                else:
                    k_offset = keys - (last - Q_LEN)
                # a key that no row sees is not read: its weights are 0, what it holds does not matter, NaN neither
                if CAUSAL:
                    exists = exists & (k_offset <= highest_q)
                if WINDOW:
                    exists = exists & (lowest - k_offset < window)
                    if not CAUSAL:
                        exists = exists & (k_offset - highest_q < window)
            if tables is not None:
                page = tl.load(tables + entry * table_batch + keys // PAGE, mask=keys < stop, other=0).to(tl.int64)
                inside = (keys % PAGE).to(tl.int64)
                k_rows = page * k_batch + inside * k_key
                v_rows = page * v_batch + inside * v_key
                k_block, v_block = k_at, v_at
            else:  # what changes is one 64-bit address, the same for all lanes
                k_rows, v_rows = lanes * k_key, lanes * v_key
                k_block, v_block = k_at + tl.cast(begin, tl.int64) * k_key, v_at + tl.cast(begin, tl.int64) * v_key
            k0 = operand(load_rows(k_block, k_rows, exists, D, 0, D0), DOT, INTERPRETED)
            scores = tl.dot(q0, tl.trans(k0), input_precision="ieee")
            if D1 > 0:
                k1 = operand(load_rows(k_block, k_rows, exists, D, D0, D1), DOT, INTERPRETED)
                scores = tl.dot(q1, tl.trans(k1), scores, input_precision="ieee")
            scores = scores * factor  # in units of log2, if nothing else happens to them
            if SOFTCAP:
                scores = capped(scores, softcap)
            visible = exists[None, :]
            if POSITIONS:
                behind = q_offset[:, None] - k_offset[None, :]
                if CAUSAL:
                    visible = visible & (behind >= 0)
                if WINDOW:
                    visible = visible & (behind < window)
                    if not CAUSAL:
                        visible = visible & (-behind < window)
                if slopes is not None:
                    scores = scores - slope[:, None] * tl.abs(behind).to(tl.float32)
            if SOFTCAP or slopes is not None:
                scores = scores * LOG2_E
            scores = tl.where(visible, scores, float("-inf"))
            higher = tl.maximum(top, tl.max(scores, 1))
            level = tl.where(higher == float("-inf"), 0.0, higher)
            weights = tl.exp2(scores - level[:, None])
            fade = tl.exp2(top - level)
            total = total * fade + tl.sum(weights, 1)
            top = higher
            if LIFTED:
                weights = weights * LIFT
            v0 = k0 if SHARED else operand(load_rows(v_block, v_rows, exists, DV, 0, DV0), DOT, INTERPRETED)
            if GAPS:
                wanted = tl.max((visible & ok[:, None]).to(tl.int32), 0) != 0
                v0 = tl.where(wanted[:, None], v0, 0.0)
            acc0 = _product(weights, v0, acc0 * fade[:, None], DOT, INTERPRETED)
            if DV1 > 0:
                v1 = k1 if SHARED else operand(load_rows(v_block, v_rows, exists, DV, DV0, DV1), DOT, INTERPRETED)
                if GAPS:
                    v1 = tl.where(wanted[:, None], v1, 0.0)
                acc1 = _product(weights, v1, acc1 * fade[:, None], DOT, INTERPRETED)

        complete = parts == 1
        if MANY:
            its_rows = tl.arange(0, BLOCK_M)
            row_at = its_rows * DV  # what differs from state to state is one 64-bit address, the same for all threads
            if parts > 1:
                slot = _slot(first_slot, part, FLAT).to(tl.int64)
                state, sums = scratch_state + slot * (2 * BLOCK_M), scratch + slot * (BLOCK_M * DV)
                store_rows(sums, row_at, ok, acc0, DV, 0, DV0)
                if DV1 > 0:
                    store_rows(sums, row_at, ok, acc1, DV, DV0, DV1)
                tl.store(state + its_rows, top, mask=ok)
                tl.store(state + BLOCK_M + its_rows, total, mask=ok)
                tl.debug_barrier()  # all threads have stored before one of them says so
                complete = tl.atomic_add(arrivals + number, 1, sem="acq_rel") == parts - 1
            if complete & (parts > 1):
                tl.debug_barrier()
                tl.store(arrivals + number, 0)
                top = tl.full((BLOCK_M,), float("-inf"), tl.float32)
                total = tl.zeros((BLOCK_M,), tl.float32)
                acc0 = tl.zeros((BLOCK_M, DV0), tl.float32)
                if DV1 > 0:
                    acc1 = tl.zeros((BLOCK_M, DV1), tl.float32)
                for others in range(0, parts, AHEAD):
                    tops, totals, accs0, accs1 = (), (), (), ()
                    for i in tl.static_range(AHEAD):  # all loads are under way before the first is needed
                        slot = _slot(first_slot, others + i, FLAT).to(tl.int64)
                        state, sums = scratch_state + slot * (2 * BLOCK_M), scratch + slot * (BLOCK_M * DV)
                        held = ok & (tl.full((BLOCK_M,), others + i, tl.int32) < parts)
                        tops = tops + (tl.load(state + its_rows, mask=held, other=float("-inf")),)  # noqa: RUF005
                        totals = totals + (tl.load(state + BLOCK_M + its_rows, mask=held, other=0.0),)  # noqa: RUF005
                        accs0 = accs0 + (load_rows(sums, row_at, held, DV, 0, DV0),)  # noqa: RUF005
                        if DV1 > 0:
                            accs1 = accs1 + (load_rows(sums, row_at, held, DV, DV0, DV1),)  # noqa: RUF005
                    for i in tl.static_range(AHEAD):
                        higher = tl.maximum(top, tops[i])
                        level = tl.where(higher == float("-inf"), 0.0, higher)
                        fade = tl.exp2(top - level)
                        gain = tl.exp2(tops[i] - level)
                        total = total * fade + totals[i] * gain
                        top = higher
                        acc0 = acc0 * fade[:, None] + accs0[i] * gain[:, None]
                        if DV1 > 0:
                            acc1 = acc1 * fade[:, None] + accs1[i] * gain[:, None]
        if complete:
            none = total == 0  # not so where NaN was seen, which goes through
            sum_of_weights = tl.where(none, 1.0, total)
            share_of_one = 1.0 / sum_of_weights
            if LIFTED:
                share_of_one = share_of_one * (1.0 / LIFT)
            if v_scales is not None:
                share_of_one = share_of_one * tl.load(v_scales + kv_head)
            written = tl.where(none, float("-inf"), (top + tl.log2(sum_of_weights)) * LN_2)
            row = (entry * KV_HEADS * GROUP + head) * Q_LEN + query
            store_rows(out, row * DV, ok, acc0 * share_of_one[:, None], DV, 0, DV0)
            if DV1 > 0:
                store_rows(out, row * DV, ok, acc1 * share_of_one[:, None], DV, DV0, DV1)
            tl.store(lse + row, written, mask=ok)
        number += 1
