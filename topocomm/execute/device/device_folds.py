"""Folds on device memory: by fused kernels where there are some, else by `combine` on tensors.

An operator that has neither a kernel nor a `combine` that takes tensors of the device is reduced in host memory. Which
implementation a rank has enters the agreement between ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from topocomm.errors import OperatorError
from topocomm.execute.device.device_library import Device
from topocomm.execute.device.device_values import Tensors, overlap
from topocomm.execute.host.call_engine import Work
from topocomm.execute.host.canonical_nodes import CanonicalNodes
from topocomm.operators.kernels import gpu
from topocomm.operators.layout import ALIGNMENT_BYTES, Layout
from topocomm.operators.operator import Operator
from topocomm.operators.tensors import device_fold, device_views, torch_dtype

NONE = "none"
"""Version of an operator without folds on the device."""
TORCH = "torch"
"""Version of folds by `combine` on tensors."""
PROBE_ROWS = 2
"""Rows of identities that `combine` is tried on."""


class DeviceFold(NamedTuple):
    """A left fold of packed chunks of one arena.

    Attributes:
        rows: Rows of each chunk.
        offsets: Where the operands start, in bytes.
        target: Where the result starts: apart from the operands, or where the first of them, or either of two, is.
    """

    rows: int
    offsets: tuple[int, ...]
    target: int


def bind_folds(work: Work, arena: Any, folds: Sequence[DeviceFold]) -> Callable[[], None]:
    """Return a function that runs all folds of a stage, in order, on the current stream.

    They are chunks of the uint8 arena; later folds may read what earlier ones wrote.
    """
    operator, layout = work.operator, work.layout
    if _kernel_version(operator, layout, arena.device) == TORCH:
        return combine_folds(operator, layout, arena, folds)
    runs = [gpu.bind_device_folds(operator, layout, arena, part) for part in independent(layout, folds)]
    return runs[0] if len(runs) == 1 else partial(_run_all, runs)


def load_folds(
    operator: Operator, layout: Layout, arena: Any, folds: Sequence[DeviceFold], run: Callable[[], None]
) -> None:
    """Load the kernels of bound folds by running them once, on identities."""
    values = {name: value.to(arena.device) for name, value in identity_tensors(operator, layout).items()}
    for at, rows in sorted({(at, fold.rows) for fold in folds for at in fold.offsets}):
        for name, view in device_views(layout, arena, at, rows).items():
            view.copy_(values[name])
    run()


class DeviceNodes(CanonicalNodes):
    """The nodes of one rank on a device, in `memories`; `work.layout` is that of one shard's value."""

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
        self._folds = [DeviceFold(layout.rows, (at * left, at * right), at * left) for left, right in self._pairs]
        self._run = bind_folds(work, memory, self._folds) if self._folds and layout.rows else None

    def load(self) -> None:
        if self._run is not None:
            load_folds(self._work.operator, self._work.layout, self.memories[0], self._folds, self._run)

    def _fold(self) -> None:
        if self._run is not None:
            self._run()


def independent(layout: Layout, folds: Sequence[DeviceFold]) -> list[list[DeviceFold]]:
    """Return the folds in order, cut where one depends on another of its part."""
    parts: list[list[DeviceFold]] = [[]]
    reads: list[tuple[int, int]] = []
    writes: list[tuple[int, int]] = []
    for fold in folds:
        chunk_bytes = layout.packed_bytes(fold.rows)
        target = (fold.target, fold.target + chunk_bytes)
        operands = [(at, at + chunk_bytes) for at in fold.offsets]
        if overlap([target], reads) or overlap([target, *operands], writes):
            parts.append([])
            reads, writes = [], []
        parts[-1].append(fold)
        reads += operands
        writes.append(target)
    return [part for part in parts if part]


def fold_version(operator: Operator, layout: Layout, device: Device) -> tuple[str, str]:
    """Return the version of the folds for a layout, equal where they round equally; and why there are none."""
    version = _kernel_version(operator, layout, device.place)
    if version != TORCH:
        return version, ""
    try:
        _probe(operator, layout, device)
    except OperatorError as error:
        return NONE, str(error)
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        return NONE, f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
    return TORCH, ""


def _kernel_version(operator: Operator, layout: Layout, place: Any) -> str:
    """Return the version of the fused kernels on a GPU; TORCH where there are none, or the device is none."""
    return gpu.device_fold_version(operator, layout, place.type) if place.type == "cuda" else TORCH


def combine_folds(operator: Operator, layout: Layout, arena: Any, folds: Sequence[DeviceFold]) -> Callable[[], None]:
    """Return a function that runs folds by `combine` on tensors."""
    runs = []
    for fold in folds:
        operands = [device_views(layout, arena, at, fold.rows) for at in fold.offsets]
        run = device_fold(operator.name, operator.combine, operands, arrays=False)
        runs.append(partial(run, device_views(layout, arena, fold.target, fold.rows)))
    return partial(_run_all, runs)


def _run_all(runs: Sequence[Callable[[], None]]) -> None:
    for run in runs:
        run()


def _probe(operator: Operator, layout: Layout, device: Device) -> None:
    """Raise what `combine` raises on tensors of the device."""
    rows = PROBE_ROWS if layout.splittable else layout.rows
    size = -(-layout.packed_bytes(rows) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    folds = [DeviceFold(rows, (0, size), 0)]
    with device.current():
        memory = device.memory(2 * size)
        load_folds(operator, layout, memory, folds, combine_folds(operator, layout, memory, folds))


def identity_tensors(operator: Operator, layout: Layout) -> Tensors:
    """Return the operator's identity as tensors of host memory that broadcast to a row."""
    import torch

    tensors = {}
    identity = operator.identities(layout)
    for bound in layout.fields:
        value = np.ascontiguousarray(np.asarray(identity[bound.name]).astype(bound.dtype))
        raw = torch.from_numpy(value.reshape(-1).view(np.uint8).copy())
        tensors[bound.name] = raw.view(torch_dtype(bound.dtype)).reshape(value.shape)
    return tensors
