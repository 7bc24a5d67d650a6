"""NumPy arrays and torch tensors on the same memory, bfloat16 included, and folds that combine tensors.

torch is imported where a tensor is at hand or asked for: never by `import topocomm`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from topocomm.errors import MissingExtraError, OperatorError
from topocomm.operators.results import field_of, not_its_dtype

if TYPE_CHECKING:
    import torch

    from topocomm.operators.layout import Layout

Combine = Callable[[Any, Any], Any]
BFLOAT16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)


def as_tensor(array: NDArray[Any]) -> Any:
    """A torch tensor on the memory of an array; bfloat16 is `ml_dtypes.bfloat16` in NumPy.

    Raises:
        OperatorError: torch has no counterpart of the dtype.
    """
    torch = _torch()
    if array.dtype == BFLOAT16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    try:
        return torch.from_numpy(array)
    except TypeError:
        raise OperatorError(f"torch has no {array.dtype}; convert it first") from None


def as_array(tensor: Any) -> NDArray[Any]:
    """A NumPy array on the memory of a CPU tensor that requires no gradients; the other way of `as_tensor`.

    Raises:
        TypeError: NumPy has no counterpart of the dtype.
        RuntimeError: The tensor requires gradients, or is none that NumPy can read.
    """
    torch = _torch()
    if tensor.dtype == torch.bfloat16:
        if tensor.requires_grad:  # the view below does not
            raise RuntimeError("the tensor requires gradients; pass x.detach()")
        array: NDArray[Any] = tensor.view(torch.int16).numpy().view(BFLOAT16)
        return array
    found: NDArray[Any] = tensor.numpy()
    return found


def device_views(layout: Layout, buffer: torch.Tensor, offset: int, rows: int) -> dict[str, torch.Tensor]:
    """`Layout.views` of a uint8 tensor on any device: the fields as tensors [rows, *dims] on its memory.

    Raises:
        OperatorError: torch has no counterpart of a dtype.
    """
    found = {}
    for bound, start in zip(layout.fields, layout.addresses(offset, rows), strict=True):
        dtype = getattr(_torch(), bound.dtype.name, None)
        if dtype is None:
            raise OperatorError(f"field {bound.name!r}: torch has no {bound.dtype}; convert it first")
        flat = buffer[start : start + rows * bound.row_bytes].view(dtype)
        found[bound.name] = flat.view(rows, *bound.row_shape)
    return found


def is_tensor(x: Any) -> bool:
    """Whether it is a torch tensor; imports nothing."""
    return hasattr(x, "is_cuda")


@cache
def numpy_dtype(dtype: Any) -> np.dtype[Any]:
    """NumPy's dtype for a torch one.

    Raises:
        OperatorError: NumPy has none.
    """
    try:
        return as_array(_torch().empty(0, dtype=dtype)).dtype
    except TypeError as error:
        raise OperatorError(f"NumPy has no {dtype} ({error}); convert it first") from None


@cache
def torch_dtype(dtype: np.dtype[Any]) -> Any:
    """The torch dtype for NumPy's.

    Raises:
        OperatorError: torch has none.
    """
    return as_tensor(np.empty(0, dtype)).dtype


def tensor_fold(
    name: str, combine: Combine, operands: Sequence[Mapping[str, NDArray[Any]]]
) -> Callable[[Mapping[str, Any]], None]:
    """The left fold of `operands` by the `combine` of the operator `name`, on CPU tensors that share their memory."""
    try:
        tensors = [{part: as_tensor(array) for part, array in operand.items()} for operand in operands]
    except OperatorError as error:
        raise OperatorError(f"operator {name!r}: {error}") from None
    fold_tensors = device_fold(name, combine, tensors)

    def fold(target: Mapping[str, Any]) -> None:
        fold_tensors({part: as_tensor(array) for part, array in target.items()})

    return fold


def device_fold(
    name: str, combine: Combine, operands: Sequence[Mapping[str, torch.Tensor]]
) -> Callable[[Mapping[str, torch.Tensor]], None]:
    """The left fold of `operands` by the `combine` of the operator `name`, on any device, into tensors given to it."""
    first, *rest = operands

    def fold(target: Mapping[str, torch.Tensor]) -> None:
        acc: Mapping[str, Any] = first
        for right in rest:
            try:
                acc = combine(acc, right)
            except TypeError as error:
                if "numpy" in str(error).lower() and next(iter(target.values())).device.type != "cpu":
                    raise _only_arrays(name, target) from error
                raise
        for part, tensor in target.items():
            _write(name, part, tensor, field_of(name, acc, part, tuple(tensor.shape)))

    return fold


def _only_arrays(name: str, target: Mapping[str, torch.Tensor]) -> OperatorError:
    device = next(iter(target.values())).device
    return OperatorError(
        f"operator {name!r}: combine takes NumPy arrays only, got tensors on {device}; "
        "install triton where the operator has a Triton combine for this layout, else give it one (`triton=`)"
    )


def _write(operator: str, name: str, target: torch.Tensor, made: Any) -> None:
    torch = _torch()
    if not isinstance(made, torch.Tensor):
        made = as_tensor(np.ascontiguousarray(made))
    if not torch.can_cast(made.dtype, target.dtype):
        raise not_its_dtype(operator, name, made.dtype, target.dtype)
    target.copy_(made.detach())


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        raise MissingExtraError("an operator on tensors", "torch", "attention") from None
    return torch
