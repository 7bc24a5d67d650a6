"""The schedule of key blocks over programs, where entries have lengths that only the device knows.

The key blocks of all tiles (a tile: BLOCK_M query rows of one key head of one entry) are numbered in one row: entry by
entry, tile by tile, from a tile's first block to its last. A tile without keys counts as one block, so that somebody
writes its result. Every program computes the total from the lengths and takes a range of equal size, as in stream-K
(Osama et al. 2023, arXiv 2301.03598): one long entry among short ones is spread over all programs. A range may end in
the middle of a tile: the tile then has several parts, one for each program whose range meets it, in order.
"""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl

LANES = tl.constexpr(128)
"""Entries that are looked at together."""


@triton.jit
def keys_within(length, n):
    """A length on the device, which nobody has checked, kept within 0 to the capacity n; int32."""
    return tl.minimum(tl.maximum(length, 0), n).to(tl.int32)


@triton.jit
def first_key(keys_here, window, Q_LEN: tl.constexpr, FROM_WINDOW: tl.constexpr):
    """The first key that some of the last Q_LEN queries see; 0 if not FROM_WINDOW."""
    first = keys_here * 0
    if FROM_WINDOW:
        first = tl.maximum(keys_here - Q_LEN - window + 1, 0)
    return first


@triton.jit
def blocks_of(keys_here, window, Q_LEN: tl.constexpr, FROM_WINDOW: tl.constexpr, BLOCK_N: tl.constexpr):
    """Key blocks of a tile of an entry with so many keys, at least 1."""
    return tl.maximum(tl.cdiv(keys_here - first_key(keys_here, window, Q_LEN, FROM_WINDOW), BLOCK_N), 1)


@triton.jit
def _blocks_from(
    begin,
    lengths,
    batch,
    n,
    window,
    Q_LEN: tl.constexpr,
    FROM_WINDOW: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """int32 [LANES]: those of the entries from `begin` on, 0 beyond the batch."""
    entries = begin + tl.arange(0, LANES)
    keys = keys_within(tl.load(lengths + entries, mask=entries < batch, other=0), n)
    return tl.where(entries < batch, blocks_of(keys, window, Q_LEN, FROM_WINDOW, BLOCK_N), 0)


@triton.jit
def _tile_at(
    place,
    lengths,
    batch,
    n,
    window,
    TILES: tl.constexpr,
    Q_LEN: tl.constexpr,
    FROM_WINDOW: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """(the tile of the block at a place of the row, the place of its first block)."""
    entry, before, done = 0, 0, 0
    for begin in range(0, batch, LANES):
        blocks = _blocks_from(begin, lengths, batch, n, window, Q_LEN, FROM_WINDOW, BLOCK_N) * TILES
        passed = (done + tl.cumsum(blocks, 0) <= place) & (begin + tl.arange(0, LANES) < batch)
        entry += tl.sum(passed.to(tl.int32))
        before += tl.sum(tl.where(passed, blocks, 0))
        done += tl.sum(blocks)
    each = blocks_of(keys_within(tl.load(lengths + entry), n), window, Q_LEN, FROM_WINDOW, BLOCK_N)
    number = (place - before) // each
    return entry * TILES + number, before + number * each


@triton.jit
def range_of_program(
    lengths,
    batch,
    n,
    window,
    TILES: tl.constexpr,
    Q_LEN: tl.constexpr,
    FROM_WINDOW: tl.constexpr,
    BLOCK_N: tl.constexpr,
    FEWEST: tl.constexpr,
):
    """What program_id(0) of num_programs(0) attends; all int32.

    Args:
        lengths: int32 or int64 [batch].
        batch: Entries; 1 or more.
        n: Capacity: keys of an entry at most. All blocks of all tiles are fewer than 2^30.
        window: As the decode kernel has it.
        TILES: Of an entry.
        Q_LEN: Queries of an entry.
        FROM_WINDOW: Whether keys before all windows are passed over.
        BLOCK_N: Keys of a block.
        FEWEST: Blocks of a range at least.

    Returns:
        (how many tiles the range meets, the first of them, the place of that tile's first block, blocks of a range).
    """
    total = 0
    for begin in range(0, batch, LANES):
        total += tl.sum(_blocks_from(begin, lengths, batch, n, window, Q_LEN, FROM_WINDOW, BLOCK_N)) * TILES
    share = tl.maximum(tl.cdiv(total, tl.num_programs(0)), FEWEST)
    start = tl.program_id(0) * share
    inside, last = tl.minimum(start, total - 1), tl.minimum(start + share, total) - 1
    tile, tile_start = _tile_at(inside, lengths, batch, n, window, TILES, Q_LEN, FROM_WINDOW, BLOCK_N)
    last_tile, _ = _tile_at(last, lengths, batch, n, window, TILES, Q_LEN, FROM_WINDOW, BLOCK_N)
    return tl.where(start < total, last_tile - tile + 1, 0), tile, tile_start, share


@triton.jit
def part_of_tile(tile_start, blocks, share):
    """What program_id(0) attends of a tile that its range meets.

    Args:
        tile_start: The place of the tile's first block.
        blocks: Of the tile.
        share: Blocks of a range.

    Returns:
        (its first block, counted in the tile; the one after its last; the first program whose range meets the tile;
        how many do).
    """
    start = tl.program_id(0) * share - tile_start
    first_program = tile_start // share
    parts = (tile_start + blocks - 1) // share - first_program + 1
    return tl.maximum(start, 0), tl.minimum(start + share, blocks), first_program, parts
