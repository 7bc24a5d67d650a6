"""Heads of a grid: all of them, each query head once, and no key head without one of its query heads."""

import pytest

from attention.ulysses.head_grid import HeadGrid

GRIDS = [
    HeadGrid(ranks, ring, kv_heads * shared, kv_heads)
    for ranks in range(1, 10)
    for ring in range(1, ranks + 1)
    if ranks % ring == 0
    for kv_heads in range(1, 13)
    for shared in range(6)
]


def test_every_query_head_is_at_one_place_of_a_group_with_its_key_head():
    for grid in GRIDS:
        places = range(grid.width)
        heads = [head for place in places for head in range(*grid.heads_of(place))]
        counts = [stop - first for first, stop in map(grid.heads_of, places)]
        assert heads == list(range(grid.heads)) and max(counts) - min(counts) <= 1
        for place in places:
            shared = grid.heads // grid.kv_heads
            wanted = sorted({head // shared for head in range(*grid.heads_of(place))})
            assert wanted == list(range(*grid.kv_heads_of(place)))


def test_runs_are_the_heads_and_all_key_heads_of_one_have_as_many():
    for grid in GRIDS:
        for place in range(grid.width):
            runs, shared = grid.runs(place), grid.heads // grid.kv_heads
            assert len(runs) <= 3
            for index, which in enumerate((grid.heads_of, grid.kv_heads_of)):
                assert [head for run in runs for head in range(*run[index])] == list(range(*which(place)))
            for heads, kv_heads in runs:
                counts = [sum(head // shared == kv_head for head in range(*heads)) for kv_head in range(*kv_heads)]
                assert len(set(counts)) == 1


def test_key_heads_at_several_places():
    for grid in GRIDS:
        holders = [sum(kv in range(*grid.kv_heads_of(p)) for p in range(grid.width)) for kv in range(grid.kv_heads)]
        assert grid.has_shared_heads == any(count > 1 for count in holders)


def test_groups_and_rings_cross_once():
    grid = HeadGrid(12, 3, 8, 2)
    assert [list(grid.members(group)) for group in range(3)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert [(grid.group(rank), grid.place(rank)) for rank in (0, 3, 4, 11)] == [(0, 0), (0, 3), (1, 0), (2, 3)]


@pytest.mark.parametrize(
    ("grid", "place", "runs"),
    [
        (HeadGrid(2, 1, 6, 3), 0, [((0, 2), (0, 1)), ((2, 3), (1, 2))]),
        (HeadGrid(2, 1, 6, 3), 1, [((3, 4), (1, 2)), ((4, 6), (2, 3))]),
        (HeadGrid(4, 1, 8, 2), 3, [((6, 8), (1, 2))]),
        (HeadGrid(3, 1, 12, 4), 1, [((4, 6), (1, 2)), ((6, 8), (2, 3))]),
        (HeadGrid(4, 1, 2, 1), 0, []),
    ],
)
def test_runs_by_hand(grid, place, runs):
    assert grid.runs(place) == runs
