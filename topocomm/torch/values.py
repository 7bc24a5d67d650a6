"""Tensors of host memory as calls take them: in one piece, flat, of a dtype that NumPy knows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from topocomm.errors import OperatorError
from topocomm.operators.tensors import numpy_dtype, tensor_view

number_view = tensor_view(bools=False)
"""What gives the items of a plain tensor of real numbers as an array of one axis, on True."""


def checked(tensor: Any, what: str) -> torch.Tensor:
    """Return a dense tensor in host memory, without its gradient.

    Raises:
        OperatorError: It is something else.
    """
    if not isinstance(tensor, torch.Tensor):
        raise OperatorError(f"{what}: expected a tensor, got {type(tensor).__name__}")
    if not tensor.is_cpu:
        raise OperatorError(f"{what}: expected a tensor in host memory, got one on {tensor.device}")
    if tensor.layout != torch.strided:
        raise OperatorError(f"{what}: expected a dense tensor, got one of layout {tensor.layout}; pass x.to_dense()")
    return tensor.detach() if tensor.requires_grad else tensor


def flat(tensor: Any, what: str) -> torch.Tensor:
    """Return the items of a tensor as one axis: on its own memory where that is in one piece, else a copy.

    Raises:
        OperatorError: As `checked`, or NumPy has no counterpart of the dtype.
    """
    tensor = checked(tensor, what)
    numpy_dtype(tensor.dtype)
    if tensor.is_complex():
        tensor = tensor.resolve_conj()
    tensor = tensor.resolve_neg()
    items: torch.Tensor = tensor if tensor.dim() == 1 and tensor.is_contiguous() else tensor.reshape(-1)
    return items


def flat_bytes(tensor: Any, what: str) -> torch.Tensor:
    """As `flat`, of a tensor that is moved only: one of a dtype without a counterpart as its bytes."""
    try:
        return flat(tensor, what)
    except OperatorError:
        return checked(tensor, what).reshape(-1).view(torch.uint8)


def flat_target(tensor: Any, what: str) -> torch.Tensor:
    """Return where the items of a result go, as one axis: the tensor's own memory if in one piece, else new memory."""
    tensor = checked(tensor, what)
    plain = tensor if tensor.is_contiguous() else torch.empty(tensor.shape, dtype=tensor.dtype)
    return flat_bytes(plain, what)


def put(tensor: torch.Tensor, items: torch.Tensor) -> None:
    """Write items, one axis, to a tensor unless they lie in its memory already."""
    if items.data_ptr() != tensor.data_ptr() or not tensor.is_contiguous():
        tensor.detach().copy_(items.view(tensor.dtype).view(tensor.shape))


def join(tensors: Iterable[Any], what: str, *, moved: bool = False) -> torch.Tensor:
    """Return the items of all tensors, one after the other, in new memory; `moved`: as `flat_bytes`."""
    take = flat_bytes if moved else flat
    return torch.cat([take(tensor, what) for tensor in tensors])


def put_all(tensors: Sequence[torch.Tensor], items: torch.Tensor) -> None:
    """Write items to tensors, one after the other."""
    first = 0
    for tensor in tensors:
        count = tensor.numel() * tensor.element_size() // items.element_size()
        put(tensor, items[first : first + count])
        first += count


def same_dtype(tensors: Sequence[Any], what: str) -> None:
    """Check a list of tensors: not empty, of one dtype.

    Raises:
        OperatorError: It is not so.
    """
    if not tensors:
        raise OperatorError(f"{what}: expected tensors, got an empty list")
    dtypes = list(dict.fromkeys(str(checked(tensor, what).dtype) for tensor in tensors))
    if len(dtypes) > 1:
        raise OperatorError(f"{what}: expected one dtype, got {', '.join(dtypes)}; convert some of them")


def same_items(outputs: int, inputs: int, what: str) -> None:
    """Check the number of items of a result against what comes to it.

    Raises:
        OperatorError: They differ.
    """
    if outputs != inputs:
        raise OperatorError(f"{what}: expected an output of {inputs} items, got one of {outputs}")
