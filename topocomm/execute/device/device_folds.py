"""The folds of a stage on device memory: by fused kernels where there are some, else by `combine` on tensors.

An operator has folds on the device if a kernel covers it or its `combine` takes tensors of the device; one that has
neither is reduced in host memory. Which it is enters the agreement between ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from topocomm.errors import OperatorError
from topocomm.execute.device.device_library import Device
from topocomm.execute.device.device_values import Tensors, tensor_views
from topocomm.execute.host.call_engine import Work
from topocomm.operators.layout import ALIGNMENT_BYTES, Layout
from topocomm.operators.operator import Operator
from topocomm.operators.results import field_of, not_its_dtype
from topocomm.operators.tensors import torch_dtype

NONE = "none"
"""The version of folds that there are not."""
TORCH = "torch"
PROBE_ROWS = 2


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
    """What makes all folds of a stage, in order, on the current stream.

    Args:
        work: The call; its operator has folds on the device (`fold_version`).
        arena: uint8 memory of the device.
        folds: They read and write chunks of the arena; later ones may read what earlier ones wrote.
    """
    operator, layout = work.operator, work.layout
    kernels = _kernels(arena.device)
    if kernels is None or kernels.device_fold_version(operator, layout, arena.device.type) == TORCH:
        return _combine_folds(operator, layout, arena, folds)
    launches: list[Callable[[], None]] = [
        kernels.bind_device_folds(operator, layout, arena, [tuple(fold) for fold in some])
        for some in independent(layout, folds)
    ]
    if len(launches) == 1:
        return launches[0]

    def run() -> None:
        for launch in launches:
            launch()

    return run


def load_folds(work: Work, arena: Any, folds: Sequence[DeviceFold], run: Callable[[], None]) -> None:
    """Have the device load what the folds run, whose chunks hold identities afterwards, or folds of some.

    Args:
        work: As `bind_folds`.
        arena: As there.
        folds: As there.
        run: What that gave for them.
    """
    values = {name: value.to(arena.device) for name, value in identity_tensors(work.operator, work.layout).items()}
    for at, rows in sorted({(at, fold.rows) for fold in folds for at in fold.offsets}):
        for name, view in tensor_views(work.layout, arena, at, rows).items():
            view.copy_(values[name])
    run()


def independent(layout: Layout, folds: Sequence[DeviceFold]) -> list[list[DeviceFold]]:
    """The folds in order, cut where one needs what another of its part writes, or writes what another reads."""
    parts: list[list[DeviceFold]] = [[]]
    reads: list[tuple[int, int]] = []
    writes: list[tuple[int, int]] = []
    for fold in folds:
        size = layout.packed_bytes(fold.rows)
        target = (fold.target, fold.target + size)
        operands = [(at, at + size) for at in fold.offsets]
        if overlap([target], reads) or overlap([target, *operands], writes):
            parts.append([])
            reads, writes = [], []
        parts[-1].append(fold)
        reads += operands
        writes.append(target)
    return [part for part in parts if part]


def overlap(some: Sequence[tuple[int, int]], others: Sequence[tuple[int, int]]) -> bool:
    """Whether one of some ranges, each a start and an end, shares anything with one of others."""
    return any(max(start, begin) < min(stop, end) for start, stop in some for begin, end in others)


def fold_version(operator: Operator, layout: Layout, device: Device) -> tuple[str, str]:
    """Which implementation `bind_folds` takes for this layout, equal versions round equally; and why there is none.

    Args:
        operator: The operator.
        layout: Of the values.
        device: Where they are.
    """
    kernels = _kernels(device.place)
    version = TORCH if kernels is None else str(kernels.device_fold_version(operator, layout, device.place.type))
    if version != TORCH:
        return version, ""
    try:
        _probe(operator, layout, device)
    except (ArithmeticError, AttributeError, LookupError, NotImplementedError, RuntimeError, TypeError) as error:
        return NONE, f"{type(error).__name__}: {_first_line(error)}"
    except OperatorError as error:
        return NONE, str(error)
    except ValueError as error:
        return NONE, f"ValueError: {_first_line(error)}"
    return TORCH, ""


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0]


def _kernels(place: Any) -> Any:
    """The module of fused kernels, or None where it or a GPU is not there."""
    if place.type != "cuda":
        return None
    try:
        return import_module("topocomm.operators.kernels.gpu")
    except ImportError:
        return None


def _combine_folds(operator: Operator, layout: Layout, arena: Any, folds: Sequence[DeviceFold]) -> Callable[[], None]:
    views = {
        (at, fold.rows): tensor_views(layout, arena, at, fold.rows)
        for fold in folds
        for at in (*fold.offsets, fold.target)
    }
    bound = [([views[at, fold.rows] for at in fold.offsets], views[fold.target, fold.rows]) for fold in folds]
    combine = operator.combine

    def run() -> None:
        for operands, target in bound:
            made: Mapping[str, Any] = operands[0]
            for right in operands[1:]:
                made = combine(made, right)
            for name, place in target.items():
                _write(operator.name, name, place, field_of(operator.name, made, name, tuple(place.shape)))

    return run


def _write(operator: str, name: str, target: Any, made: Any) -> None:
    import torch

    if not isinstance(made, torch.Tensor):
        raise OperatorError(
            f"operator {operator!r}: combine made field {name!r} {type(made).__name__} of tensors on a device; "
            "expected a tensor there"
        )
    if made.device != target.device:
        raise OperatorError(f"operator {operator!r}: combine made field {name!r} on {made.device}, not {target.device}")
    if not torch.can_cast(made.dtype, target.dtype):
        raise not_its_dtype(operator, name, made.dtype, target.dtype)
    target.copy_(made.detach())


def _probe(operator: Operator, layout: Layout, device: Device) -> None:
    """Raise what `combine` raises on tensors of the device; of identities, two rows of them."""
    rows = PROBE_ROWS if layout.splittable else layout.rows
    size = -(-layout.packed_bytes(rows) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    with device.current():
        memory = device.memory(2 * size)
        for at in (0, size):
            fill_identity(operator, layout, tensor_views(layout, memory, at, rows))
        _combine_folds(operator, layout, memory, [DeviceFold(rows, (0, size), 0)])()


def fill_identity(operator: Operator, layout: Layout, views: Tensors) -> None:
    """Write the operator's identity to tensors [rows, *dims]."""
    for name, value in identity_tensors(operator, layout).items():
        views[name].copy_(value)


def identity_tensors(operator: Operator, layout: Layout) -> Tensors:
    """The operator's identity as tensors of host memory that broadcast to a row."""
    import torch

    found = {}
    told = operator.identities(layout)
    for bound in layout.fields:
        value = np.ascontiguousarray(np.asarray(told[bound.name]).astype(bound.dtype))
        raw = torch.from_numpy(value.reshape(-1).view(np.uint8).copy())
        found[bound.name] = raw.view(torch_dtype(bound.dtype)).reshape(value.shape)
    return found
