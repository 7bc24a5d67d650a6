"""The paper's formulas, against the numbers that it gives for them."""

import pytest

from tools.paper.published import MEMORY_GAP_MB, TABLES, ring_memory, ring_numbers, tree_memory, tree_numbers


def test_its_example_of_bytes():  # 6.3: 640,000 tokens, 8 GPUs, hidden 2048
    assert ring_numbers(640_000, 2048, 8) == pytest.approx(2.62e9, rel=1e-3)
    assert tree_numbers(2048, 16, 8) == 3640


def test_its_gap_of_memory():  # figure 4: 128,000 tokens on two GPUs
    for hidden, gap_mb in MEMORY_GAP_MB.items():
        gap = ring_memory(64_000, hidden) - tree_memory(64_000, hidden, hidden // 128)
        assert 2 * gap / 1e6 == pytest.approx(gap_mb, rel=0.01)


def test_ratios_of_its_tables():  # as the tables have them beside the times, rounded both ways
    printed = {"8x H100": (4, 4, 2, 3), "4x MI300X": (3, 3, 3, 2), "2x RTX 4090": (4, 5, 5, 5)}
    for name, rows in TABLES.items():
        assert all(abs(row.ring_s / row.tree_s - times) < 0.6 for row, times in zip(rows, printed[name], strict=True))
