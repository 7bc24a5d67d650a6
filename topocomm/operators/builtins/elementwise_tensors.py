"""The formulas of `elementwise.py` on torch tensors, wherever these are; with the same bits as on NumPy arrays.

Every formula but the wide ones, which need more of float64 than tensors give.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from topocomm.errors import OperatorError
from topocomm.operators.dtypes import computed, kind
from topocomm.operators.tensors import numpy_dtype, torch_dtype

if TYPE_CHECKING:
    from topocomm.operators.builtins.formula import Dtypes, Formula
    from topocomm.operators.layout import Arrays


def combine_tensors(
    choose: Callable[[Dtypes], Formula], names: tuple[str, ...], left: Arrays, right: Arrays
) -> dict[str, Any]:
    """One step of a fold.

    Args:
        choose: The formula for the dtypes of the fields.
        names: The fields, in the formula's order.
        left: Tensors [rows] by field.
        right: As many.

    Raises:
        OperatorError: The formula takes no tensors.
    """
    dtypes = tuple(numpy_dtype(left[name].dtype) for name in names)
    formula = choose(dtypes)
    if formula.wide:
        raise OperatorError(f"{formula.name} has no combine on tensors")
    parts = [
        part
        for value in (left, right)
        for name, dtype in zip(names, dtypes, strict=True)
        for part in _parts(value[name], dtype)
    ]
    made = formula.function(*parts)
    results = iter(made if isinstance(made, tuple) else (made,))
    return {name: _join(results, dtype) for name, dtype in zip(names, dtypes, strict=True)}


def _parts(tensor: Any, dtype: np.dtype[Any]) -> tuple[Any, ...]:
    if kind(dtype) == "c":
        return tensor.real, tensor.imag
    return (tensor.to(torch_dtype(computed(dtype, False))),)


def _join(results: Iterator[Any], dtype: np.dtype[Any]) -> Any:
    first = next(results)
    if kind(dtype) == "c":
        return torch.complex(first, next(results))
    return first.to(torch_dtype(dtype))
