"""Canonical order on one rank: its virtual shards folded into the nodes of the canonical tree that it sends.

Every fold is binary and has its place in the tree, so the bits do not depend on which rank makes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from topocomm.execute.calls.structure import Fields
from topocomm.execute.host.staged_engine import aligned_buffer
from topocomm.operators.layout import ALIGNMENT_BYTES, Layout
from topocomm.operators.operator import Operator
from topocomm.planning.schedule.canonical_tree import Node, canonical_nodes, canonical_split


class LocalNodes:
    """The nodes of one rank.

    Args:
        operator: The operator.
        layout: Of one shard's value.
        shards: The first virtual shard of every rank, and the end of the last.
        rank: This rank.
        tensors: Whether the operator's combine is given tensors.
    """

    def __init__(self, operator: Operator, layout: Layout, shards: Sequence[int], rank: int, *, tensors: bool) -> None:
        self._layout, self._first = layout, shards[rank]
        self.shards = shards[rank + 1] - shards[rank]
        self.nodes = canonical_nodes(shards[rank], shards[rank + 1], shards[-1])
        size = -(-layout.packed_bytes(layout.rows) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        self._memory = aligned_buffer(size * max(self.shards, 1))
        self._offsets = [size * index for index in range(self.shards)]
        self._values = [layout.views(self._memory, at, layout.rows) for at in self._offsets]
        self._operator, self._tensors = operator, tensors
        self._folds: list[Callable[[], None]] = []
        for node in self.nodes:
            self._fold(node)
        self._stacked = {f.name: np.zeros((len(self.nodes), layout.rows, *f.row_shape), f.dtype) for f in layout.fields}

    @property
    def leading(self) -> tuple[int, ...]:
        """Leading shape of what `fold` returns."""
        return (len(self.nodes), *self._layout.leading)

    def fold(self, fields: Fields) -> Fields:
        """The values of the nodes, [nodes, rows, *dims]; overwritten by the next call.

        Args:
            fields: The values of the shards, [shards, *rows, *dims].
        """
        for name, array in fields.items():
            flat = array.reshape(self.shards, self._layout.rows, *self._stacked[name].shape[2:])
            for value, shard in zip(self._values, flat, strict=True):
                value[name][...] = shard
        for fold in self._folds:
            fold()
        for name, stacked in self._stacked.items():
            for place, (low, _) in zip(stacked, self.nodes, strict=True):
                place[...] = self._values[low - self._first][name]
        return self._stacked

    def _fold(self, node: Node) -> None:
        """Fold the shards of a node; the value is where its first shard was."""
        low, high = node
        if high - low < 2:
            return
        middle = low + canonical_split(high - low)
        self._fold((low, middle))
        self._fold((middle, high))
        left, right = low - self._first, middle - self._first
        operands = [self._offsets[left], self._offsets[right]]
        fold = self._operator.bind_fold(self._layout, self._memory, self._layout.rows, operands, tensors=self._tensors)
        self._folds.append(partial(fold, self._values[left]))
