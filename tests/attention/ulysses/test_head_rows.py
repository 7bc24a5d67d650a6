"""Rows of every place of a group."""

import torch

from attention import Spec
from attention.arrays import Inputs
from attention.ulysses.head_grid import HeadGrid
from attention.ulysses.head_rows import HeadRows


def made(grid, *, has_lse=True):
    q, k, v = (
        torch.zeros(2, heads, 4, d, dtype=dtype)
        for heads, d, dtype in (
            (grid.heads, 8, torch.float32),
            (grid.kv_heads, 8, torch.bfloat16),
            (grid.kv_heads, 16, torch.bfloat16),
        )
    )
    return HeadRows.of(grid, Inputs(q, k, v, Spec(), None), has_lse=has_lse)


def test_key_heads_go_once_to_each_place_that_has_query_heads_of_them():
    """6 query heads over 2 key heads at 4 places: 1, 2, 1 and 2 of them, each over one key head."""
    layouts = made(HeadGrid(4, 1, 6, 2)).inputs()
    assert [[part.heads for part in layout.parts] for layout in layouts] == [[1, 1, 1], [2, 1, 1], [1, 1, 1], [2, 1, 1]]
    sizes = {part.name: part.dtype.itemsize * part.dim for part in layouts[0].parts}
    assert sizes == {"q": 32, "k": 16, "v": 32}
    assert [layout.pieces for layout in layouts] == [2 * (2 + 1 + 2), 2 * (4 + 1 + 2)] * 2


def test_gradients_of_shared_key_heads_are_sums_in_float32():
    assert made(HeadGrid(4, 1, 6, 2)).of_kv_sums == torch.float32
    assert made(HeadGrid(2, 1, 6, 2)).of_kv_sums == torch.bfloat16


def test_lse_is_sent_if_it_is_returned():
    grid = HeadGrid(2, 1, 6, 2)
    assert [[part.name for part in layout.parts] for layout in made(grid).results()] == [["out", "lse"]] * 2
    assert [[part.name for part in x.parts] for x in made(grid, has_lse=False).results()] == [["out"]] * 2


def test_tensors_of_all_heads():
    rows = made(HeadGrid(2, 1, 6, 2))
    assert rows.empty("k", 3, torch.float32).shape == (2, 2, 3, 8)
    assert rows.empty("out", 3, torch.float32).shape == (2, 6, 3, 16)
    assert rows.heads("q", 1) == slice(3, 6) and rows.heads("v", 1) == slice(1, 2)
