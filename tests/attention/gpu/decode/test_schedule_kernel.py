"""The ranges of programs: every key block of every tile is attended once, and all programs know the same parts."""

from tests.interpreted import interpreted  # isort: skip before anything that imports triton

import itertools

import numpy as np
import pytest
import torch
import triton.language as tl

from attention.gpu.decode.schedule_kernel import LANES, blocks_of, keys_within, part_of_tile, range_of_program

BLOCK = 16


@interpreted
def recorder(
    lengths,
    batch,
    n,
    window,
    found,
    counts,
    TILES: tl.constexpr,
    Q_LEN: tl.constexpr,
    FROM_WINDOW: tl.constexpr,
    BLOCK_N: tl.constexpr,
    FEWEST: tl.constexpr,
    MOST: tl.constexpr,
):
    """What the decode kernel does with a range, with a record [MOST, 6] of each program in place of attention."""
    program = tl.program_id(0)
    meets, number, tile_start, share = range_of_program(
        lengths, batch, n, window, TILES, Q_LEN, FROM_WINDOW, BLOCK_N, FEWEST
    )
    tl.store(counts + program, meets)
    for i in range(0, meets):
        keys = keys_within(tl.load(lengths + number // TILES), n)
        blocks = blocks_of(keys, window, Q_LEN, FROM_WINDOW, BLOCK_N)
        begin, end, first_program, parts = part_of_tile(tile_start, blocks, share)
        at = found + (program * MOST + i) * 6
        tl.store(at, number)
        tl.store(at + 1, begin)
        tl.store(at + 2, end)
        tl.store(at + 3, first_program)
        tl.store(at + 4, parts)
        tl.store(at + 5, share)
        tile_start += blocks
        number += 1


def model(lengths, n, tiles, programs, fewest, first=lambda keys: 0):
    """The same in plain Python: of each program a list of (tile, first block, end, first program, parts, share)."""
    kept = [min(max(x, 0), n) for x in lengths]
    blocks = [max(1, -(-(x - first(x)) // BLOCK)) for x in kept for _ in range(tiles)]
    starts = [0, *itertools.accumulate(blocks)]
    share = max(-(-starts[-1] // programs), fewest)
    ranges = [(g * share, min((g + 1) * share, starts[-1])) for g in range(programs)]
    made = []
    for low, high in ranges:
        mine = []
        for tile, count in enumerate(blocks):
            begin, end = max(low - starts[tile], 0), min(high - starts[tile], count)
            if begin < end:
                meeting = [g for g, (a, b) in enumerate(ranges) if a < starts[tile] + count and starts[tile] < b]
                mine.append((tile, begin, end, meeting[0], len(meeting), share))
        made.append(mine)
    return made, blocks


def recorded(lengths, n, tiles, programs, fewest, window=0, q_len=1, dtype=torch.int64):
    most = len(lengths) * tiles
    found, counts = torch.full((programs, most, 6), -1), torch.zeros(programs, dtype=torch.int64)
    recorder[(programs,)](
        torch.tensor(lengths, dtype=dtype), len(lengths), n, window, found, counts,
        TILES=tiles, Q_LEN=q_len, FROM_WINDOW=window > 0, BLOCK_N=BLOCK, FEWEST=fewest, MOST=most,
    )  # fmt: skip
    return [[tuple(x) for x in mine[:count].tolist()] for mine, count in zip(found, counts.tolist(), strict=True)]


def check(ranges, blocks, programs):
    """Every block once; the parts of a tile are those of programs that follow each other; no slot is taken twice."""
    done = [[] for _ in blocks]
    slots = set()
    for program, mine in enumerate(ranges):
        assert sum(end - begin for _, begin, end, *_ in mine) <= (mine[0][5] if mine else 0)
        for tile, begin, end, first_program, parts, _ in mine:
            assert program - first_program == len(done[tile]) < parts
            done[tile].append((begin, end, parts))
            if parts > 1:
                slot = 2 * program + (program == first_program)
                assert slot not in slots and slot < 2 * programs
                slots.add(slot)
    for count, pieces in zip(blocks, done, strict=True):
        assert len(pieces) == pieces[0][2]
        assert [x for begin, end, _ in pieces for x in range(begin, end)] == list(range(count))


def test_every_block_is_attended_once_for_all_small_batches():
    for lengths in itertools.product((-3, 0, 1, 16, 17, 70, 99), repeat=3):
        for tiles, programs, fewest in itertools.product((1, 2), (1, 2, 5, 11), (1, 3)):
            check(*model(lengths, 80, tiles, programs, fewest), programs)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_the_kernel_does_what_the_model_does(dtype):
    random = np.random.default_rng(1)
    for trial in range(10):
        batch = int(random.choice([1, 2, 3, 9]))
        n = int(random.choice([1, 16, 100, 3000]))
        lengths = random.choice([-1, 0, 1, n - 1, n, n + 7, 1 << 30, *random.integers(0, n + 1, 4)], batch).tolist()
        tiles, programs, fewest = (int(random.choice(x)) for x in ([1, 2, 5], [1, 3, 8], [1, 4]))
        made = recorded(lengths, n, tiles, programs, fewest, dtype=dtype)
        wanted, blocks = model(lengths, n, tiles, programs, fewest)
        assert made == wanted, (trial, lengths, n, tiles, programs, fewest)
        check(made, blocks, programs)


def test_more_entries_than_lanes():
    lanes = LANES.value
    for batch in (lanes, lanes + 1, 2 * lanes + 5):
        lengths = np.random.default_rng(batch).integers(0, 60, batch).tolist()
        lengths[batch // 2] = 900
        made = recorded(lengths, 1000, 2, 4, 1)
        wanted, blocks = model(lengths, 1000, 2, 4, 1)
        assert made == wanted
        check(made, blocks, 4)


def test_keys_before_all_windows_are_no_work():
    window, q_len = 20, 2
    lengths = [200, 5, 33, 0]
    made = recorded(lengths, 200, 1, 3, 1, window, q_len)
    wanted, blocks = model(lengths, 200, 1, 3, 1, first=lambda keys: max(0, keys - q_len - window + 1))
    assert made == wanted and blocks == [2, 1, 2, 1]


def test_one_long_entry_is_spread_over_all_programs():
    ranges, blocks = model([64_000, *[100] * 7], 64_000, 2, 64, 1)
    work = [sum(end - begin for _, begin, end, *_ in mine) for mine in ranges]
    assert max(work) == -(-sum(blocks) // 64)
    assert sum(any(tile < 2 for tile, *_ in mine) for mine in ranges) >= 63
