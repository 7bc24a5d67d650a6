"""Memory layout of an operator's values: named fields, bound to shapes and dtypes, packed in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

ROWS = "*rows"
ALIGNMENT_BYTES = 64
"""Slots start on a cache line, so that no two ranks' or slots' data share one."""

Arrays = Mapping[str, Any]
"""Arrays of a value by field: what `combine` is given and returns."""
Buffer = NDArray[np.uint8]
Fold = Callable[[Arrays], None]
"""Function that writes its result to the given arrays, one C-contiguous [rows, *dims] per field."""


class Field(NamedTuple):
    """One named array of an operator's value.

    `dims` names the axes: `("*rows", "dim")` is the shared leading shape followed by one axis of size `dim`.
    `dtype` None takes the dtype of the array given at the call.
    """

    name: str
    dims: tuple[str, ...] = (ROWS,)
    dtype: DTypeLike | None = None


class BoundField(NamedTuple):
    """A field with known dtype and sizes."""

    name: str
    dtype: np.dtype[Any]
    row_shape: tuple[int, ...]

    @property
    def row_bytes(self) -> int:
        """Bytes of one row of this field."""
        return prod(self.row_shape) * self.dtype.itemsize


@dataclass(frozen=True)
class Layout:
    """The packed form of one operator's value: `rows` flattened rows of every field.

    `leading` is the shape that the user's arrays have in place of `*rows`; its product is `rows`.
    `dims` are the bound sizes by name.
    """

    fields: tuple[BoundField, ...]
    leading: tuple[int, ...]
    dims: tuple[tuple[str, int], ...] = ()
    splittable: bool = True

    @cached_property
    def rows(self) -> int:
        """Number of flattened rows: what chunks divide."""
        return prod(self.leading)

    @cached_property
    def row_bytes(self) -> int:
        """Bytes of one row over all fields."""
        return sum(f.row_bytes for f in self.fields)

    def packed_bytes(self, rows: int) -> int:
        """Bytes of a packed chunk of `rows` rows, alignment gaps included."""
        return self.addresses(0, rows)[-1] + rows * self.fields[-1].row_bytes

    def views(self, buffer: Buffer, offset: int, rows: int) -> dict[str, NDArray[Any]]:
        """Return the fields of a packed chunk of `rows` rows at byte `offset` of `buffer`, as arrays [rows, *dims]."""
        out: dict[str, NDArray[Any]] = {}
        for bound, start in zip(self.fields, self.addresses(offset, rows), strict=True):
            flat = buffer[start : start + rows * bound.row_bytes].view(bound.dtype)
            out[bound.name] = flat.reshape((rows, *bound.row_shape))
        return out

    def addresses(self, start: int, rows: int) -> list[int]:
        """Return the start of each field of a packed chunk of `rows` rows that starts at `start`."""
        starts = []
        end = 0
        for bound in self.fields:
            at = -(-end // bound.dtype.itemsize) * bound.dtype.itemsize
            end = at + rows * bound.row_bytes
            starts.append(start + at)
        return starts

    @property
    def forms(self) -> dict[str, str]:
        """Dtype and shape of every field in words, as `float32 [1000]`."""
        return {f.name: f"{f.dtype} {[*self.leading, *f.row_shape]}" for f in self.fields}

    def __str__(self) -> str:
        return ", ".join(f"{name} {form}" for name, form in self.forms.items())
