"""Attention of query rows over the keys of one shard, compiled by numba: decoding and prefill on the CPU.

Keys go in blocks; within a block the scores, their exponentials and the weighted sums stay in the cache, between
blocks the usual online softmax keeps a running maximum and sum. Up to `TILE_ROWS` query rows share one pass, so in
decoding each key and value byte is read once. While one block is computed the next is asked for, so that memory is
busy all the time.
"""

from __future__ import annotations

import math

import numpy as np
from numba import carray, njit  # type: ignore[attr-defined]

from attention.kernels.addresses import floats, from_bits, pointer
from attention.kernels.simd import add, exp, finite, fma, greater, greatest, load, mul, spread, store, sub, tanh
from attention.kernels.simd_lanes import HALVES, KEYS, LANES, ROWS
from attention.kernels.tiles import add_weighted, prefetch, products

__all__ = ["HALVES", "LANES", "ROWS", "TILE_ROWS", "attend_items"]

BLOCK_KEYS = 64
TILE_ROWS = 64
"""Query rows of one pass over the keys."""

# Where in a task stands: the first item and one past the last; item ((entry kv_heads + head) tiles + tile) segments +
# segment.
FIRST, END = 0, 1
# Sizes; ROWS_OF_HEAD query rows share a key head, and PAGE keys lie side by side.
BATCH, KV_HEADS, ROWS_OF_HEAD, Q_LEN, D, D_V, PAGE = 2, 3, 4, 5, 6, 7, 8
# Of batch entry, head, query and element in q; of batch entry or page, head and key in k and v, whose elements lie side
# by side.
Q_STRIDES, K_STRIDES, V_STRIDES = 9, 13, 16
# The dtype of q: FULL float32, BRAIN bfloat16, or float16.
Q_KIND = 19
FULL, BRAIN = 0, 1
# Addresses. Out float32 [segments, batch, heads, q_len, d_v], lse float32 [segments, batch, heads, q_len].
Q_AT, K_AT, V_AT, OUT_AT, LSE_AT = 20, 21, 22, 23, 24

SLOPES = 2
"""Where in `bends` they begin."""
HALF = np.empty(0, np.uint16)
HALF_TO_FLOAT = np.float32(2.0**112)


@njit(cache=True, nogil=True, error_model="numpy")
def attend_items(task, tables, bends, like):
    """Write out and lse of some items: each is a tile of query rows of one key head, over one segment of its keys.

    Addresses instead of arrays, since a decode step of few keys would spend its time on turning tensors into arrays.

    Args:
        task: int64, as said above.
        tables: (rules, positions, order, pages, segments), int64. Rules [3, batch or 1, q_len]: a row sees the keys at
            positions from rules[0] to rules[1]; its own, for slopes, is rules[2]. Positions [batch or 1, n]; none at
            all ([1, 0]): all rows see all keys. Order [batch or 1, n]: numbers of the keys as they are taken; none: as
            they lie. Pages [batch, pages]: where in k and v they are; none: no pages. Segments [segments, 2]: from
            where to where in the order.
        bends: float32: scale, softcap, then the slopes of all heads or none. Scores s become softcap tanh(s /
            softcap), 0: they stay; then they lose slope times distance.
        like: An array of the dtype of k and v, of any length: float32; uint16 for bfloat16, int16 for float16.
    """
    rows, d, d_v = task[ROWS_OF_HEAD], task[D], task[D_V]
    segments = tables[4]
    tiles = (rows + TILE_ROWS - 1) // TILE_ROWS
    all_heads = task[BATCH] * task[KV_HEADS]
    wide, wide_v = (d + LANES - 1) // LANES * LANES, (d_v + LANES - 1) // LANES * LANES
    all_rows = segments.shape[0] * all_heads * rows
    k, v = carray(pointer(task[K_AT], like), (1,)), carray(pointer(task[V_AT], like), (1,))
    out, lse = floats(task[OUT_AT], all_rows * d_v), floats(task[LSE_AT], all_rows)
    work = (
        np.empty(TILE_ROWS * BLOCK_KEYS, np.float32),
        np.empty(TILE_ROWS * wide_v, np.float32),
        np.empty(2 * TILE_ROWS * KEYS, np.float32),
        np.zeros((6, BLOCK_KEYS), np.int64),
        np.empty((3, TILE_ROWS), np.int64),
        np.empty(TILE_ROWS, np.float32),
        np.zeros(TILE_ROWS * wide, np.float32),
    )
    for item in range(task[FIRST], task[END]):
        segment, tile = item % segments.shape[0], item // segments.shape[0] % tiles
        number, first = item // segments.shape[0] // tiles, tile * TILE_ROWS
        _describe(number, first, tables[0], task, bends, work)
        _take_queries(number, first, task, bends[0], wide, work[6])
        _attend((number, first), segments[segment], k, v, tables, task, bends, work)
        for row in range(min(TILE_ROWS, rows - first)):
            at = (segment * all_heads + number) * rows + first + row
            values = work[1][row * wide_v : row * wide_v + d_v]
            _normalise(values, work[2], row, out[at * d_v : (at + 1) * d_v], lse, at)


@njit(inline="always")
def _take_queries(number, first, task, scale, wide, queries):
    """The rows of a tile times the scale, in whole groups of rows and whole vectors; what fills them up is 0."""
    rows, q_len, d = task[ROWS_OF_HEAD], task[Q_LEN], task[D]
    group = rows // q_len
    end = min(TILE_ROWS, rows - first)
    for row in range(end):
        head = number % task[KV_HEADS] * group + (first + row) // q_len
        at = number // task[KV_HEADS] * task[Q_STRIDES] + head * task[Q_STRIDES + 1]
        at += (first + row) % q_len * task[Q_STRIDES + 2]
        target = queries[row * wide : row * wide + d]
        if task[Q_KIND] == FULL:
            _copy_scaled(floats(task[Q_AT] + 4 * at, d * task[Q_STRIDES + 3]), task[Q_STRIDES + 3], scale, target)
        else:
            _widen_scaled(task, at, scale, target)
    queries[end * wide : (end + ROWS - 1) // ROWS * ROWS * wide] = 0


@njit(inline="always")
def _copy_scaled(source, step, scale, target):
    if step == 1:
        for j in range(target.size):
            target[j] = source[j] * scale
    else:
        for j in range(target.size):
            target[j] = source[j * step] * scale


@njit
def _widen_scaled(task, at, scale, target):
    source = carray(pointer(task[Q_AT] + 2 * at, HALF), (1,))
    for j in range(target.size):
        bits = np.uint32(source[j * task[Q_STRIDES + 3]])
        if task[Q_KIND] == BRAIN:
            wide = from_bits(bits << np.uint32(16))
        else:  # the exponent is moved by a product, which does subnormals too; that of inf and NaN is set
            wide = from_bits((bits & np.uint32(0x7FFF)) << np.uint32(13)) * HALF_TO_FLOAT
            if bits & np.uint32(0x7C00) == np.uint32(0x7C00):
                wide = from_bits(np.uint32(0x7F800000) | (bits & np.uint32(0x3FF)) << np.uint32(13))
            wide = -wide if bits & np.uint32(0x8000) else wide
        target[j] = wide * scale


@njit(inline="always")
def _describe(number, first, rules, task, bends, work):
    """What holds for each row of a tile; rows that only fill up a group are like the last."""
    kv_heads, rows, q_len = task[KV_HEADS], task[ROWS_OF_HEAD], task[Q_LEN]
    entry, bounds = min(number // kv_heads, rules.shape[1] - 1), work[4]
    for row in range(TILE_ROWS):
        own = min(first + row, rows - 1)
        for rule in range(3):
            bounds[rule, row] = rules[rule, entry, own % q_len]
        if bends.size > SLOPES:
            work[5][row] = bends[SLOPES + number % kv_heads * (rows // q_len) + own // q_len]


@njit(inline="always")
def _attend(here, segment, k, v, tables, task, bends, work):
    """Sums, maxima and totals of one item, not normalised yet."""
    number, first = here
    softcap, sloped = bends[1], bends.size > SLOPES
    scores, sums, state, lists, bounds, _, q = work
    rows, d, d_v = task[ROWS_OF_HEAD], task[D], task[D_V]
    width, wide_v = (d + LANES - 1) // LANES * LANES, (d_v + LANES - 1) // LANES * LANES
    groups = (min(TILE_ROWS, rows - first) + ROWS - 1) // ROWS
    sums[: groups * ROWS * wide_v] = 0
    for group in range(groups):
        store(state, 2 * group * LANES, spread(np.float32(-np.inf)))
        store(state, (2 * group + 1) * LANES, spread(np.float32(0)))
    start, now = segment[0], 0
    ready = _list_block(start, segment[1], number, groups, tables, task, bounds, lists[:3])
    while start < segment[1]:
        start += BLOCK_KEYS
        block, count = lists[now : now + 3], ready
        now = 3 - now
        ready = _list_block(start, segment[1], number, groups, tables, task, bounds, lists[now : now + 3])
        for group in range(groups if count else 0):
            part = scores[group * ROWS * BLOCK_KEYS : (group + 1) * ROWS * BLOCK_KEYS]
            for i in range(0, count, KEYS):
                if group == 0:
                    prefetch((v, block[1]), i, d_v)
                store(part, i * ROWS, products((q, group * ROWS * width, width), (k, block[0]), i, d))
            if softcap:
                _bend(part, count, softcap)
            if tables[1].size:
                _mask(part, count, group * ROWS, bounds, work[5], sloped, block[2])
            for i in range(count * ROWS, (count + KEYS - 1) // KEYS * LANES):
                part[i] = -np.inf
            _exponentials(part, count, state, 2 * group * LANES, sums[group * ROWS * wide_v :], wide_v)
        for group in range(groups if count else 0):
            part = scores[group * ROWS * BLOCK_KEYS : (group + 1) * ROWS * BLOCK_KEYS]
            add_weighted((sums, group * ROWS * wide_v, wide_v), part, count, (v, block[1]), d_v, (k, lists[now]))


@njit(inline="always")
def _list_block(start, stop, number, groups, tables, task, bounds, block):
    """List the keys of a block that any row sees: where they lie in k and in v, and their positions.

    What the others hold is never read. Returns the number of keys.
    """
    positions, order, pages = tables[1], tables[2], tables[3]
    entry, head = number // task[KV_HEADS], number % task[KV_HEADS]
    own = positions[min(entry, positions.shape[0] - 1)]
    low, high = bounds[0, : groups * ROWS].min(), bounds[1, : groups * ROWS].max()
    found = 0
    for i in range(start, min(start + BLOCK_KEYS, stop)):
        key = order[min(entry, order.shape[0] - 1), i] if order.size else i
        if own.size:
            block[2, found] = own[key]
            if not low <= own[key] <= high:
                continue
        outer, inner = entry, key
        if pages.size:
            outer, inner = pages[entry, key // task[PAGE]], key % task[PAGE]
        block[0, found] = outer * task[K_STRIDES] + head * task[K_STRIDES + 1] + inner * task[K_STRIDES + 2]
        block[1, found] = outer * task[V_STRIDES] + head * task[V_STRIDES + 1] + inner * task[V_STRIDES + 2]
        found += 1
    for i in range(found, (found + KEYS - 1) // KEYS * KEYS):
        block[:, i] = block[:, found - 1]
    return found


@njit(inline="always")
def _bend(scores, count, softcap):
    """Scores become softcap tanh(s / softcap)."""
    inverse, cap = spread(np.float32(1 / softcap)), spread(softcap)
    for at in range(0, count * ROWS, LANES):
        store(scores, at, mul(cap, tanh(mul(load(scores, at), inverse))))


@njit(inline="always")
def _mask(scores, count, row, bounds, slopes, sloped, positions):
    """Scores lose slope times distance; those of the keys that a row does not see become -inf."""
    if sloped:
        for i in range(count):
            for r in range(ROWS):
                scores[i * ROWS + r] -= slopes[row + r] * np.float32(abs(bounds[2, row + r] - positions[i]))
    least, most = positions[0], positions[0]
    for i in range(count):
        least, most = min(least, positions[i]), max(most, positions[i])
    if least >= bounds[0, row : row + ROWS].max() and most <= bounds[1, row : row + ROWS].min():
        return
    for i in range(count):
        for r in range(ROWS):
            if not bounds[0, row + r] <= positions[i] <= bounds[1, row + r]:
                scores[i * ROWS + r] = -np.inf


@njit(inline="always")
def _exponentials(scores, count, state, at, sums, stride):
    """Scores become weights relative to the new maximum; maximum, total and sums of the rows follow."""
    before = load(state, at)
    highest = before
    for i in range(0, count * ROWS, LANES):
        highest = greater(load(scores, i), highest)
    highest = greatest(highest)
    base = finite(highest)
    gain = spread(np.float32(0))
    for i in range(0, count * ROWS, LANES):
        weights = exp(sub(load(scores, i), base))
        store(scores, i, weights)
        gain = add(gain, weights)
    decay = exp(sub(before, base))
    store(state, at, highest)
    # The vector of totals becomes that of decays for a moment, to look at single lanes.
    total = fma(load(state, at + LANES), decay, gain)
    store(state, at + LANES, decay)
    for row in range(ROWS):
        factor = state[at + LANES + row]
        if factor != 1:
            for j in range(row * stride, (row + 1) * stride, LANES):
                store(sums, j, mul(load(sums, j), spread(factor)))
    store(state, at + LANES, total)


@njit(inline="always")
def _normalise(sums, state, row, out, lse, at):
    """The result of one row; its total is spread over lanes."""
    here = 2 * (row // ROWS) * LANES + row % ROWS
    top, total = state[here], np.float32(0)
    for i in range(KEYS):
        total += state[here + LANES + i * ROWS]
    if total == 0:
        out[:] = 0
        lse[at] = -np.inf
        return
    for j in range(sums.size):
        out[j] = sums[j] / total
    lse[at] = np.float32(np.float64(top) + math.log(np.float64(total)))
