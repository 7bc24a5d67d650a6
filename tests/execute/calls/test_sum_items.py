"""Memory of one SUM: blocks, digests that tell different references, and what all-reduces do not hold."""

import numpy as np
import pytest

from topocomm.execute.calls.sum_items import SumItems
from topocomm.operators.layout import BoundField, Layout
from topocomm.operators.sum_lowering import DIGEST_ITEMS, MOST_RANKS

FLOAT = np.dtype(np.float32)
LAYOUT = Layout((BoundField("out", FLOAT, (3,)), BoundField("weight", FLOAT, ())), (5,), (("dim", 3),))


def items(ranks, parts=None, rank=0):
    return SumItems(LAYOUT, parts, rank, ranks)


def test_an_allreduce_is_one_block():
    one = items(2)
    (block,) = one.blocks
    assert one.counts is None and not np.shares_memory(one.sent, one.received)
    for array, own in ((one.sent, block), (one.received, one.own)):
        assert array.size == 5 * 4 + DIGEST_ITEMS and own.imprecise is None and own.rows == slice(0, 5)
        own.sums["out"][...], own.sums["weight"][...] = 1, 2
        assert array[:20].tolist() == [1] * 15 + [2] * 5 and not array[20:].any()


def test_a_reduce_scatter_has_a_block_for_every_rank():
    parts = (2, 0, 3)
    for rank in range(3):
        some = items(3, parts, rank)
        assert some.counts == tuple(4 * rows + DIGEST_ITEMS + 1 for rows in parts)
        assert some.sent.size == sum(some.counts) and some.received.size == some.counts[rank]
        assert [(block.rows.start, block.rows.stop) for block in some.blocks] == [(0, 2), (2, 2), (2, 5)]
        for number, block in enumerate(some.blocks):
            block.imprecise[:] = 7 + number
        ends = np.cumsum(some.counts) - 1
        assert some.sent[ends].tolist() == [7, 8, 9] and some.own.sums["out"].shape == (parts[rank], 3)


@pytest.mark.parametrize("parts", [None, (1, 4)])
@pytest.mark.parametrize("ranks", [1, 2, 5, MOST_RANKS])
def test_a_digest_tells_any_difference(ranks, parts):
    held = items(ranks, parts)
    reference = np.arange(5.0)

    def sum_of(*others):
        """What this rank gets where so many ranks have these references and the others its own."""
        total = np.zeros_like(held.received)
        for value, count in [*((other, 1) for other in others), (reference, ranks - len(others))]:
            held.stamp(value)
            total += held.sent[: total.size] * np.float32(count)
        held.received[:] = total
        return held.agrees()

    assert sum_of()
    for wrong in (np.nextafter(reference, 9), reference[::-1].copy()):
        assert ranks == 1 or not sum_of(wrong)
    held.received[:] = 0
    assert not held.agrees()
    assert items(ranks, parts).agrees()  # operators without a reference
