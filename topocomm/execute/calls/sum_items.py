"""Memory of one SUM: for every rank that gets a result a block with the shares of its rows, and a digest.

The digest is of the reference: eight digits of four bits and their squares. Sums of n digits and of n squares that are
n times a rank's own ones leave no variance: then all n are equal. All are whole and below 2^24, so every rank reads
the same sums, and the ranks agree on whether there is a difference.

In a reduce-scatter every rank reads the counts of its own rows only. So each block holds one more item, the number of
ranks whose shares alone, over all rows of all blocks, would not be precise: a count that all ranks read alike.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np

from topocomm.execute.device.device_library import Device
from topocomm.execute.host.staged_engine import aligned_buffer
from topocomm.operators.layout import Layout
from topocomm.operators.sum_lowering import DIGEST_ITEMS, tail_items
from topocomm.operators.tensors import device_views

_DIGITS = np.array([[b >> 4, b & 15, (b >> 4) ** 2, (b & 15) ** 2] for b in range(256)], np.float64)


class SumBlock(NamedTuple):
    """What is added for one range of rows.

    Attributes:
        rows: First row, and one past the last.
        sums: The fields, by name.
        tail: Bytes of the digest and, of a reduce-scatter, of the item behind it; None on a device.
        imprecise: That item, an array or tensor of one; else None.
    """

    rows: slice
    sums: dict[str, Any]
    tail: memoryview | None
    imprecise: Any


class SumItems:
    """What a rank adds, and where it gets sums.

    Attributes:
        sent: All items, one array or tensor.
        received: Those with the sums, other memory: in place, libraries would copy.
        counts: Items of every block; None in an all-reduce, which has one block.
        blocks: Of `sent`.
        own: The block of `received`.
    """

    def __init__(
        self, layout: Layout, parts: tuple[int, ...] | None, rank: int, ranks: int, device: Device | None = None
    ) -> None:
        self._layout, self._device = layout, device
        tail = tail_items(scattered=parts is not None)
        starts = np.cumsum([0, *(parts or (layout.rows,))]).tolist()
        rows = [slice(first, end) for first, end in pairwise(starts)]
        row_items = layout.row_bytes // layout.fields[0].dtype.itemsize
        counts = [row_items * (own.stop - own.start) + tail for own in rows]
        self.counts = None if parts is None else tuple(counts)
        self.sent, self.blocks = self._blocks(rows, counts, tail)
        mine = 0 if parts is None else rank
        self.received, (self.own,) = self._blocks([rows[mine]], [counts[mine]], tail)
        digits = _DIGITS.astype(layout.fields[0].dtype)
        self._digits = [row.tobytes() for row in digits]
        self._sums = [row.tobytes() for row in digits * digits.dtype.type(ranks)]
        self._expected = bytes(DIGEST_ITEMS * digits.itemsize)  # without a reference nothing is stamped

    def stamp(self, reference: Any) -> None:
        """Write the digest of a reference in host memory, for `agrees`."""
        d, s, code = self._digits, self._sums, crc32(reference)
        a, b, c, e = code & 255, code >> 8 & 255, code >> 16 & 255, code >> 24
        digest = d[a] + d[b] + d[c] + d[e]
        for block in self.blocks:
            if block.tail is not None:
                block.tail[: len(digest)] = digest
        self._expected = s[a] + s[b] + s[c] + s[e]

    def agrees(self) -> bool:
        """Whether all ranks have stamped the same digest."""
        tail = self.own.tail
        return tail is None or tail[: len(self._expected)].tobytes() == self._expected

    def _blocks(self, rows: list[slice], counts: list[int], tail: int) -> tuple[Any, list[SumBlock]]:
        """Zeroed memory of blocks, and these."""
        layout, dtype = self._layout, self._layout.fields[0].dtype
        size = sum(counts) * dtype.itemsize
        if self._device is None:
            memory: Any = aligned_buffer(size)
            memory[:] = 0
            items: Any = memory.view(dtype)
        else:
            import torch

            memory = torch.zeros(size, dtype=torch.uint8, device=self._device.place)
            items = memory.view(getattr(torch, str(dtype)))
        blocks, start = [], 0
        for own, count in zip(rows, counts, strict=True):
            end = start + count
            at = start * dtype.itemsize
            count_of_rows = own.stop - own.start
            held, views = None, dict[str, Any]()
            if self._device is None:
                views = layout.views(memory, at, count_of_rows)
                held = memoryview(items[end - tail : end]).cast("B")
            else:
                views = device_views(layout, memory, at, count_of_rows)
            blocks.append(SumBlock(own, views, held, items[end - 1 : end] if tail > DIGEST_ITEMS else None))
            start = end
        return items, blocks
