"""Values on a device: torch tensors, and CuPy arrays as tensors on the same memory."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from topocomm.errors import OperatorError

Tensors = dict[str, Any]


def is_cupy(x: Any) -> bool:
    """Return whether x is a CuPy array."""
    cupy = sys.modules.get("cupy")  # an array exists only where cupy was imported
    return cupy is not None and isinstance(x, cupy.ndarray)


def field_in_words(name: str | None) -> str:
    """Return a field in words; None is a value that is one bare array."""
    return "the array" if name is None else f"field {name!r}"


def to_tensor(name: str | None, value: Any) -> Any:
    """Return a dense tensor on the memory of a field's value, or of a bare array.

    Raises:
        OperatorError: A tensor requires gradients, is sparse, or is a lazy conjugate or negation.
    """
    if is_cupy(value):
        from torch.utils.dlpack import from_dlpack

        return from_dlpack(value)
    if value.requires_grad:
        raise OperatorError(f"{field_in_words(name)} requires gradients; pass x.detach()")
    if str(value.layout) != "torch.strided":
        raise OperatorError(f"{field_in_words(name)} is sparse ({value.layout}); pass x.to_dense()")
    if value.is_conj() or value.is_neg():
        raise OperatorError(
            f"{field_in_words(name)} is conjugated or negated when it is read; pass x.resolve_conj().resolve_neg()"
        )
    return value


def to_cupy(tensor: Any) -> Any:
    """Return a CuPy array on the memory of a tensor."""
    import cupy  # type: ignore[import-not-found, unused-ignore]

    return cupy.from_dlpack(tensor)


def place_of(tensor: Any) -> tuple[int, int]:
    """Return the addresses at which a contiguous tensor starts and ends."""
    start = int(tensor.data_ptr())
    return start, start + tensor.numel() * tensor.element_size()


def overlap(ranges: Sequence[tuple[int, int]], others: Sequence[tuple[int, int]]) -> bool:
    """Return whether any of some [start, end) ranges shares anything with one of others."""
    return any(max(start, begin) < min(stop, end) for start, stop in ranges for begin, end in others)


def check_writable(fields: Mapping[str, Any]) -> None:
    """Raise OperatorError where several items of a result, or two of its fields, would be one place in memory."""
    places = []
    for name, tensor in fields.items():
        if (
            any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True))
            and tensor.numel()
        ):
            words = "out" if len(fields) == 1 else f"out: field {name!r}"
            raise OperatorError(f"{words}: several items are one place in memory; give a plain tensor")
        if tensor.numel():
            reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
            places.append((tensor.data_ptr(), tensor.data_ptr() + (reach + 1) * tensor.element_size(), name))
    places.sort()
    for (_, end, first), (start, _, second) in pairwise(places):
        if start < end:
            raise OperatorError(f"out: fields {first!r} and {second!r} share memory; give tensors of their own")
