"""Values on a device: torch tensors, and CuPy arrays seen as tensors on the same memory."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from topocomm.errors import OperatorError
from topocomm.execute.device import device_library as devices
from topocomm.operators.layout import Layout
from topocomm.operators.tensors import torch_dtype

Tensors = dict[str, Any]


def is_cupy(x: Any) -> bool:
    """Whether it is a CuPy array."""
    cupy = sys.modules.get("cupy")  # an array exists only where cupy was imported
    return cupy is not None and isinstance(x, cupy.ndarray)


def to_tensor(name: str, part: Any) -> Any:
    """A dense tensor on the memory of what the user gave for a field.

    Raises:
        OperatorError: It requires gradients, or its memory is not what is read from it.
    """
    if is_cupy(part):
        from torch.utils.dlpack import from_dlpack

        return from_dlpack(part)
    check_plain(name, part)
    return part


def check_plain(name: str, part: Any) -> None:
    """Raise OperatorError where a tensor requires gradients, or its memory is not what is read from it."""
    if part.requires_grad:
        raise OperatorError(f"field {name!r} requires gradients; pass x.detach()")
    if str(part.layout) != "torch.strided":
        raise OperatorError(f"field {name!r} is sparse ({part.layout}); pass x.to_dense()")
    if part.is_conj() or part.is_neg():
        raise OperatorError(
            f"field {name!r} is conjugated or negated when it is read; pass x.resolve_conj().resolve_neg()"
        )


def to_cupy(tensor: Any) -> Any:
    """A CuPy array on the memory of a tensor."""
    import cupy  # type: ignore[import-not-found, unused-ignore]

    return cupy.from_dlpack(tensor)


def tensor_views(layout: Layout, memory: Any, offset: int, rows: int) -> Tensors:
    """The fields of the packed chunk of `rows` rows at byte `offset`, as tensors [rows, *dims] on uint8 `memory`."""
    found = {}
    for bound, start in zip(layout.fields, layout.addresses(offset, rows), strict=True):
        flat = memory[start : start + rows * bound.row_bytes].view(torch_dtype(bound.dtype))
        found[bound.name] = flat.view((rows, *bound.row_shape))
    return found


def check_tensors(what: str, fields: Mapping[str, Any], shapes: Mapping[str, tuple[tuple[int, ...], Any]]) -> None:
    """Raise OperatorError unless the tensors have the shapes and torch dtypes of a prepared call."""
    for name, (shape, dtype) in shapes.items():
        got = fields[name]
        if got.shape != shape or got.dtype != dtype:
            raise OperatorError(
                f"{what}: field {name!r} must be {dtype} {list(shape)} as prepared, got {got.dtype} {list(got.shape)}"
            )


def check_place(what: str, fields: Mapping[str, Any], device: devices.Device) -> None:
    """Raise OperatorError unless all fields lie on the device that the call was prepared for."""
    for name, part in fields.items():
        if devices.device_of(part) is not device:
            where = getattr(part, "device", "host memory")
            raise OperatorError(f"{what}: field {name!r} is on {where}; the call was prepared for {device.place}")


def check_writable(fields: Mapping[str, Any]) -> None:
    """Raise OperatorError where several items of a result, or two of its fields, would be one place in memory."""
    places = []
    for name, part in fields.items():
        if any(step == 0 and size > 1 for step, size in zip(part.stride(), part.shape, strict=True)) and part.numel():
            raise OperatorError(f"out: several items of field {name!r} are one place in memory; give a plain tensor")
        if part.numel():
            reach = sum((size - 1) * step for size, step in zip(part.shape, part.stride(), strict=True))
            places.append((part.data_ptr(), part.data_ptr() + (reach + 1) * part.element_size(), name))
    places.sort()
    for (_, end, one), (start, _, other) in pairwise(places):
        if start < end:
            raise OperatorError(f"out: fields {one!r} and {other!r} share memory; give tensors of their own")
