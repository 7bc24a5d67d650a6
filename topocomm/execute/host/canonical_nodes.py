"""Canonical order on one rank: its virtual shards folded into the nodes of the canonical tree that it sends.

Every fold is binary and has its place in the tree, so the bits do not depend on which rank makes it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from topocomm.execute.host.staged_engine import aligned_buffer
from topocomm.operators.layout import ALIGNMENT_BYTES, Layout
from topocomm.operators.operator import Operator
from topocomm.planning.schedule.canonical_tree import Node, canonical_nodes, canonical_split


class CanonicalNodes(ABC):
    """The nodes of one rank, in host or in device memory.

    Args:
        layout: Of one shard's value.
        shards: The first virtual shard of every rank, and the end of the last.

    Attributes:
        shards: Number of this rank's virtual shards.
        nodes: (first shard, end) of every node, in order.
    """

    _values: Sequence[Mapping[str, Any]]
    """[rows, *dims] by field, of every shard; that of a node is where its first shard was."""
    _stacked: dict[str, Any]
    """[nodes, rows, *dims] by field: the result."""

    def __init__(self, layout: Layout, shards: Sequence[int], rank: int) -> None:
        self._layout, self._first = layout, shards[rank]
        self.shards = shards[rank + 1] - shards[rank]
        self.nodes = canonical_nodes(shards[rank], shards[rank + 1], shards[-1])
        self._pairs = [pair for node in self.nodes for pair in self._pairs_of(node)]
        """The values to fold, by place; each result replaces the left one."""
        self._shard_bytes = -(-layout.packed_bytes(layout.rows) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES

    @property
    def leading(self) -> tuple[int, ...]:
        """Leading shape of what `fold` returns."""
        return (len(self.nodes), *self._layout.leading)

    def fold(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Fold the shards' values, [shards, *rows, *dims], to those of the nodes, [nodes, rows, *dims].

        What is returned is overwritten by the next call.
        """
        for name, array in fields.items():
            flat = array.reshape(self.shards, self._layout.rows, *self._stacked[name].shape[2:])
            for value, shard in zip(self._values, flat, strict=True):
                value[name][...] = shard
        self._fold()
        for name, stacked in self._stacked.items():
            for place, (low, _) in zip(stacked, self.nodes, strict=True):
                place[...] = self._values[low - self._first][name]
        return self._stacked

    @abstractmethod
    def _fold(self) -> None:
        """Make the folds of `_pairs`, in order."""

    def _pairs_of(self, node: Node) -> list[tuple[int, int]]:
        low, high = node
        if high - low < 2:
            return []
        middle = low + canonical_split(high - low)
        halves = self._pairs_of((low, middle)) + self._pairs_of((middle, high))
        return [*halves, (low - self._first, middle - self._first)]


class LocalNodes(CanonicalNodes):
    """The nodes of one rank in host memory; `tensors`: whether the operator's combine is given tensors."""

    def __init__(self, operator: Operator, layout: Layout, shards: Sequence[int], rank: int, *, tensors: bool) -> None:
        super().__init__(layout, shards, rank)
        memory = aligned_buffer(self._shard_bytes * max(self.shards, 1))
        offsets = [self._shard_bytes * index for index in range(self.shards)]
        self._values = [layout.views(memory, at, layout.rows) for at in offsets]
        self._stacked = {f.name: np.zeros((len(self.nodes), layout.rows, *f.row_shape), f.dtype) for f in layout.fields}
        self._folds = [
            partial(
                operator.bind_fold(layout, memory, layout.rows, [offsets[left], offsets[right]], tensors=tensors),
                self._values[left],
            )
            for left, right in self._pairs
        ]

    def _fold(self) -> None:
        for fold in self._folds:
            fold()
