"""Canonical order on one rank, in device memory: as `local_nodes.py` has it for host memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from topocomm.execute.device.device_folds import DeviceFold, bind_folds, load_folds
from topocomm.execute.device.device_library import Device
from topocomm.execute.host.call_engine import Work
from topocomm.operators.layout import ALIGNMENT_BYTES
from topocomm.operators.tensors import device_views
from topocomm.planning.schedule.canonical_tree import Node, canonical_nodes, canonical_split


class DeviceNodes:
    """The nodes of one rank.

    Args:
        work: The call; its layout is that of one shard's value.
        shards: The first virtual shard of every rank, and the end of the last.
        device: Where the values are.

    Attributes:
        memories: What it uses on the device.
    """

    def __init__(self, work: Work, shards: Sequence[int], device: Device) -> None:
        layout, self._first = work.layout, shards[work.rank]
        self._rows, self._shards = layout.rows, shards[work.rank + 1] - self._first
        self._nodes = canonical_nodes(self._first, shards[work.rank + 1], shards[-1])
        self._bytes = -(-layout.packed_bytes(layout.rows) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        memory = device.memory(max(self._bytes * self._shards, 1))
        self._values = [device_views(layout, memory, self._bytes * index, layout.rows) for index in range(self._shards)]
        stack = device.memory(max(1, layout.packed_bytes(self._stack_rows)))
        self._stacked = device_views(layout, stack, 0, self._stack_rows)
        self.memories = (memory, stack)
        self._folds: list[DeviceFold] = []
        for node in self._nodes:
            self._fold(node, self._folds)
        self._run = bind_folds(work, memory, self._folds) if self._folds and layout.rows else None
        self._work = work

    @property
    def _stack_rows(self) -> int:
        return len(self._nodes) * self._rows

    def load(self) -> None:
        """As `StreamEngine.load`."""
        if self._run is not None:
            load_folds(self._work, self.memories[0], self._folds, self._run)

    def fold(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """The values of the nodes, [nodes * rows, *dims]; overwritten by the next call.

        Args:
            fields: The values of the shards, [shards, *rows, *dims].
        """
        for name, tensor in fields.items():
            flat = tensor.reshape(self._shards, self._rows, *self._stacked[name].shape[1:])
            for value, shard in zip(self._values, flat, strict=True):
                value[name].copy_(shard)
        if self._run is not None:
            self._run()
        for name, stacked in self._stacked.items():
            for index, (low, _) in enumerate(self._nodes):
                stacked[index * self._rows : (index + 1) * self._rows].copy_(self._values[low - self._first][name])
        return self._stacked

    def _fold(self, node: Node, folds: list[DeviceFold]) -> None:
        """Fold the shards of a node, in order; the value is where its first shard was."""
        low, high = node
        if high - low < 2:
            return
        middle = low + canonical_split(high - low)
        self._fold((low, middle), folds)
        self._fold((middle, high), folds)
        left, right = ((at - self._first) * self._bytes for at in (low, middle))
        folds.append(DeviceFold(self._rows, (left, right), left))
