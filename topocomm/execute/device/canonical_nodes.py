"""Canonical order on one rank, in device memory; its twin in host memory is `LocalNodes`."""

from __future__ import annotations

from collections.abc import Sequence

from topocomm.execute.device.device_folds import DeviceFold, bind_folds, load_folds
from topocomm.execute.device.device_library import Device
from topocomm.execute.host.call_engine import Work
from topocomm.execute.host.canonical_nodes import CanonicalNodes
from topocomm.operators.tensors import device_views


class DeviceNodes(CanonicalNodes):
    """The nodes of one rank on a device; `work.layout` is that of one shard's value.

    Attributes:
        memories: Tensors that it uses on the device.
    """

    def __init__(self, work: Work, shards: Sequence[int], device: Device) -> None:
        layout = work.layout
        super().__init__(layout, shards, work.rank)
        rows, at = len(self.nodes) * layout.rows, self._shard_bytes
        memory = device.memory(max(at * self.shards, 1))
        stack = device.memory(max(1, layout.packed_bytes(rows)))
        self._values = [device_views(layout, memory, at * index, layout.rows) for index in range(self.shards)]
        self._stacked = {
            name: view.view(len(self.nodes), layout.rows, *view.shape[1:])
            for name, view in device_views(layout, stack, 0, rows).items()
        }
        self.memories = (memory, stack)
        self._work = work
        self._folds = [DeviceFold(layout.rows, (at * left, at * right), at * left) for left, right in self._pairs()]
        self._run = bind_folds(work, memory, self._folds) if self._folds and layout.rows else None

    def load(self) -> None:
        """Load the kernels of the folds."""
        if self._run is not None:
            load_folds(self._work.operator, self._work.layout, self.memories[0], self._folds, self._run)

    def _fold(self) -> None:
        if self._run is not None:
            self._run()
