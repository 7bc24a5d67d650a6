"""Operators that combine element by element, by one formula in NumPy and in the compiled kernel.

A formula is a function of plain arithmetic, `formula(*left, *right)`, that returns the combined value: of NumPy arrays
here, of scalars in `native/folds.c`. Every step of it rounds by IEEE 754 and none is a call into a math library, so
both give the same bits on every machine (only which NaN a NaN is may differ).

A value's *parts* are what a formula takes: one per field, and two, real and imaginary, per complex field. Floats of 16
bits are computed with in float32, those of a `wide` formula all in float64; the result rounds to the stored dtype once
(from float64 to 16 bits by way of float32).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from topocomm.errors import OperatorError
from topocomm.operators.builtins.formula import Dtypes, Formula
from topocomm.operators.dtypes import computed, kind
from topocomm.operators.kernels.cpu import compiled_kernel
from topocomm.operators.layout import Arrays, Buffer, Field, Fold, Layout
from topocomm.operators.operator import Kernel, Operator, TritonCombine
from topocomm.operators.sum_lowering import SumLowering
from topocomm.operators.tensors import is_tensor, numpy_dtype, torch_dtype

BLOCK_ROWS = 16384
"""Rows that NumPy folds at once, so that temporaries stay in a core's cache."""


def elementwise(
    name: str,
    fields: Sequence[Field],
    choose: Callable[[Dtypes], Formula],
    identity: Mapping[str, Any] | Callable[[Mapping[str, np.dtype[Any]]], Mapping[str, Any]],
    *,
    commutative: bool,
    refuses: Callable[[Layout], str | None],
    sample: Callable[[np.random.Generator, Layout], Arrays] | None = None,
    lower_to_sum: Callable[[Layout], SumLowering | None] | None = None,
) -> Operator:
    """An operator whose fields are all [*rows], with the formula that `choose` gives for their dtypes."""
    names = tuple(f.name for f in fields)

    def combine(left: Arrays, right: Arrays) -> Arrays:
        tensors = is_tensor(left[names[0]])
        dtypes = tuple(numpy_dtype(left[f].dtype) if tensors else np.asarray(left[f]).dtype for f in names)
        formula = choose(dtypes)
        if tensors and formula.wide:  # needs more of float64 than tensors give
            raise OperatorError(f"{formula.name} has no combine on tensors")
        return _combine(formula, names, dtypes, left, right)

    def kernel(layout: Layout) -> Kernel:
        dtypes = tuple(f.dtype for f in layout.fields)
        return _kernel(choose(dtypes), names, dtypes)

    def triton(layout: Layout) -> TritonCombine | None:
        formula = choose(tuple(f.dtype for f in layout.fields))
        if formula.tiles is None:
            return None
        from topocomm.operators.kernels import gpu_formulas

        return TritonCombine(f"triton.{formula.name}/{formula.version}", getattr(gpu_formulas, formula.tiles))

    return Operator(
        name,
        tuple(fields),
        combine,
        identity,
        commutative=commutative,
        kernel=kernel,
        triton=triton,
        refuses=refuses,
        sample=sample,
        lower_to_sum=lower_to_sum,
    )


@cache
def _kernel(formula: Formula, names: tuple[str, ...], dtypes: Dtypes) -> Kernel:
    kernel = compiled_kernel(formula.name, formula.version, dtypes)
    return kernel or Kernel(f"numpy.{formula.name}/{formula.version}", _numpy_bind(formula, names, dtypes))


def _combine(formula: Formula, names: tuple[str, ...], dtypes: Dtypes, left: Arrays, right: Arrays) -> dict[str, Any]:
    with np.errstate(all="ignore"):  # overflow, NaN and infinities go as IEEE 754 says
        parts = [
            part
            for value in (left, right)
            for name, dtype in zip(names, dtypes, strict=True)
            for part in _parts(value[name], dtype, formula.wide)
        ]
        combined = formula.function(*parts)
        results = iter(combined if isinstance(combined, tuple) else (combined,))
        return {name: _join(results, dtype) for name, dtype in zip(names, dtypes, strict=True)}


def _parts(value: Any, dtype: np.dtype[Any], wide: bool) -> tuple[Any, ...]:
    if kind(dtype) == "c":
        return value.real, value.imag
    if is_tensor(value):
        return (value.to(torch_dtype(computed(dtype, wide))),)
    return (np.asarray(value).astype(computed(dtype, wide), copy=False),)


def _join(results: Iterator[Any], dtype: np.dtype[Any]) -> Any:
    """Round the next results of a formula to a field of the stored dtype."""
    first = next(results)
    if is_tensor(first):
        import torch

        return torch.complex(first, next(results)) if kind(dtype) == "c" else first.to(torch_dtype(dtype))
    first = np.asarray(first)
    if kind(dtype) == "c":
        joined = np.empty(first.shape, dtype)
        joined.real, joined.imag = first, next(results)
        return joined
    if dtype.itemsize == 2 and kind(dtype) == "f":
        first = first.astype(np.float32, copy=False)
    return first.astype(dtype, copy=False)


def _numpy_bind(
    formula: Formula, names: tuple[str, ...], dtypes: Dtypes
) -> Callable[[Layout, Buffer, int, Sequence[int]], Fold]:
    ufunc = formula.ufunc

    def bind(layout: Layout, buffer: Buffer, rows: int, offsets: Sequence[int]) -> Fold:
        first, *rest = (layout.views(buffer, offset, rows) for offset in offsets)

        def fold(target: Arrays) -> None:
            for start in range(0, rows, BLOCK_ROWS):
                part = slice(start, start + BLOCK_ROWS)
                acc: Arrays = {name: first[name][part] for name in names}
                for operand in rest:
                    acc = _combine(formula, names, dtypes, acc, {name: operand[name][part] for name in names})
                for name in names:
                    target[name][part] = acc[name]

        def fold_alike(target: Arrays) -> None:
            assert ufunc is not None, "bound where there is one"
            (name,) = names
            left = first[name]
            with np.errstate(all="ignore"):
                for right in rest:
                    left = ufunc(left, right[name], out=target[name])
            if not rest:
                target[name][...] = left

        return fold if ufunc is None else fold_alike

    return bind
