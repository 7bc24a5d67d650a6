"""Attention of query rows over the keys of one shard, compiled by numba: decoding and prefill on the CPU.

Keys go in blocks; within a block the scores, their exponentials and the weighted sums stay in the cache, between
blocks the usual online softmax keeps a running maximum and sum. Up to `TILE_ROWS` query rows share one pass, so in
decoding each key and value byte is read once. While one block is computed the next is asked for, so that memory is
busy all the time.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from attention.kernels.lanes import HALVES, KEYS, LANES, ROWS
from attention.kernels.simd import add, exp, finite, fma, greater, greatest, load, mul, spread, store, sub, tanh
from attention.kernels.tiles import add_weighted, prefetch, products

__all__ = ["HALVES", "LANES", "ROWS", "TILE_ROWS", "attend_items"]

BLOCK_KEYS = 64
TILE_ROWS = 64
"""Query rows of one pass over the keys."""


@njit(cache=True, nogil=True, error_model="numpy")
def attend_items(items, q, k, v, rules, keys, plan, bends, result):
    """Write out and lse of some items: each is a tile of query rows of one key head, over one segment of its keys.

    Args:
        items: (first, one past the last); item ((entry kv_heads + head) tiles + tile) segments + segment.
        q: float32 [batch kv_heads padded width], times the scale: rows in whole groups, d in whole vectors; what
            fills them up is 0.
        k: float32; or bfloat16 as uint16, float16 as int16. Where the keys lie in it says `plan`.
        v: Likewise.
        rules: int64 [3, batch or 1, q_len]: a row sees the keys at positions from rules[0] to rules[1]; its own, for
            slopes, is rules[2].
        keys: (positions, order, pages, segments). Positions int64 [batch or 1, n]; none at all ([1, 0]): all rows see
            all keys. Order int64 [batch or 1, n]: numbers of the keys as they are taken; none: as they lie. Pages
            int64 [batch, pages]: where in k and v they are; none: no pages. Segments int64 [segments, 2]: from where
            to where in the order.
        plan: int64: kv_heads, rows per key head, q_len, d, d_v, page size; strides of batch or page, head and key in
            k, then in v.
        bends: (softcap, slopes). Scores s become softcap tanh(s / softcap), 0: they stay; then they lose slope times
            distance, float32 [heads], none: nothing.
        result: (out, lse), float32 [segments batch kv_heads rows d_v] and [segments batch kv_heads rows].
    """
    out, lse = result
    rows, d_v, segments = plan[1], plan[4], keys[3]
    tiles = (rows + TILE_ROWS - 1) // TILE_ROWS
    all_heads = lse.size // max(1, segments.shape[0] * rows)
    wide_v = (d_v + LANES - 1) // LANES * LANES
    work = (
        np.empty(TILE_ROWS * BLOCK_KEYS, np.float32),
        np.empty(TILE_ROWS * wide_v, np.float32),
        np.empty(2 * TILE_ROWS * KEYS, np.float32),
        np.zeros((6, BLOCK_KEYS), np.int64),
        np.empty((3, TILE_ROWS), np.int64),
        np.empty(TILE_ROWS, np.float32),
    )
    for item in range(items[0], items[1]):
        segment, tile = item % segments.shape[0], item // segments.shape[0] % tiles
        number, first = item // segments.shape[0] // tiles, tile * TILE_ROWS
        _describe(number, first, rules, plan, bends[1], work)
        _attend((number, first), segments[segment], q, k, v, keys, plan, bends, work)
        for row in range(min(TILE_ROWS, rows - first)):
            at = (segment * all_heads + number) * rows + first + row
            values = work[1][row * wide_v : row * wide_v + d_v]
            _normalise(values, work[2], row, out[at * d_v : (at + 1) * d_v], lse, at)


@njit(inline="always")
def _describe(number, first, rules, plan, slopes, work):
    """What holds for each row of a tile; rows that only fill up a group are like the last."""
    kv_heads, rows, q_len = plan[0], plan[1], plan[2]
    entry, bounds = min(number // kv_heads, rules.shape[1] - 1), work[4]
    for row in range(TILE_ROWS):
        own = min(first + row, rows - 1)
        for rule in range(3):
            bounds[rule, row] = rules[rule, entry, own % q_len]
        if slopes.size:
            work[5][row] = slopes[number % kv_heads * (rows // q_len) + own // q_len]


@njit(inline="always")
def _attend(here, segment, q, k, v, keys, plan, bends, work):
    """Sums, maxima and totals of one item, not normalised yet."""
    number, first = here
    softcap, sloped = bends[0], bends[1].size > 0
    scores, sums, state, lists, bounds, _ = work
    rows, d, d_v = plan[1], plan[3], plan[4]
    width, wide_v = (d + LANES - 1) // LANES * LANES, (d_v + LANES - 1) // LANES * LANES
    groups = (min(TILE_ROWS, rows - first) + ROWS - 1) // ROWS
    base = (number * ((rows + ROWS - 1) // ROWS * ROWS) + first) * width
    sums[: groups * ROWS * wide_v] = 0
    for group in range(groups):
        store(state, 2 * group * LANES, spread(np.float32(-np.inf)))
        store(state, (2 * group + 1) * LANES, spread(np.float32(0)))
    start, now = segment[0], 0
    ready = _list_block(start, segment[1], number, groups, keys, plan, bounds, lists[:3])
    while start < segment[1]:
        start += BLOCK_KEYS
        block, count = lists[now : now + 3], ready
        now = 3 - now
        ready = _list_block(start, segment[1], number, groups, keys, plan, bounds, lists[now : now + 3])
        for group in range(groups if count else 0):
            part = scores[group * ROWS * BLOCK_KEYS : (group + 1) * ROWS * BLOCK_KEYS]
            for i in range(0, count, KEYS):
                if group == 0:
                    prefetch((v, block[1]), i, d_v)
                store(part, i * ROWS, products((q, base + group * ROWS * width, width), (k, block[0]), i, d))
            if softcap:
                _bend(part, count, softcap)
            if keys[0].size:
                _mask(part, count, group * ROWS, bounds, work[5], sloped, block[2])
            for i in range(count * ROWS, (count + KEYS - 1) // KEYS * LANES):
                part[i] = -np.inf
            _exponentials(part, count, state, 2 * group * LANES, sums[group * ROWS * wide_v :], wide_v)
        for group in range(groups if count else 0):
            part = scores[group * ROWS * BLOCK_KEYS : (group + 1) * ROWS * BLOCK_KEYS]
            add_weighted((sums, group * ROWS * wide_v, wide_v), part, count, (v, block[1]), d_v, (k, lists[now]))


@njit(inline="always")
def _list_block(start, stop, number, groups, keys, plan, bounds, block):
    """List the keys of a block that any row sees: where they lie in k and in v, and their positions.

    What the others hold is never read. Returns the number of keys.
    """
    positions, order, pages = keys[0], keys[1], keys[2]
    entry, head = number // plan[0], number % plan[0]
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
            outer, inner = pages[entry, key // plan[5]], key % plan[5]
        block[0, found] = outer * plan[6] + head * plan[7] + inner * plan[8]
        block[1, found] = outer * plan[9] + head * plan[10] + inner * plan[11]
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
