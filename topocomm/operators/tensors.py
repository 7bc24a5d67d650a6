"""NumPy arrays and torch tensors on the same memory, bfloat16 included, and folds of tensors by `combine`.

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

if TYPE_CHECKING:
    import torch

    from topocomm.operators.layout import Layout

Combine = Callable[[Any, Any], Any]
BFLOAT16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
NUMBERS = (
    *[(code, 8 * size, np.dtype(f"{kind}{size}")) for code, kind in enumerate("iu") for size in (1, 2, 4, 8)],
    *[(2, 8 * size, np.dtype(f"f{size}")) for size in (2, 4, 8)],
    (4, 16, BFLOAT16),
)
"""Dtypes of real numbers by DLPack's code and bits."""
BOOLS = (6, 8, np.dtype(bool))


def as_tensor(array: NDArray[Any]) -> Any:
    """Return a torch tensor on the memory of an array; bfloat16 is `ml_dtypes.bfloat16` in NumPy.

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
    """Return a NumPy array on the memory of a CPU tensor that requires no gradients.

    Raises:
        TypeError: NumPy has no counterpart of the dtype.
        RuntimeError: The tensor requires gradients, or is none that NumPy can read.
    """
    view = tensor_view()(tensor, False)
    if view is not None:
        return view
    torch = _torch()
    if tensor.dtype == torch.bfloat16:
        if tensor.requires_grad:  # the view below does not
            raise RuntimeError("the tensor requires gradients; pass x.detach()")
        halves: NDArray[Any] = tensor.view(torch.int16).numpy().view(BFLOAT16)
        return halves
    array: NDArray[Any] = tensor.numpy()
    return array


@cache
def tensor_view(*, bools: bool = True) -> Callable[[Any, bool], NDArray[Any] | None]:
    """Return what gives an array on the memory of a tensor, of its shape or, on True, of one axis.

    It takes a fifth of the time of torch's `numpy`. It gives None of a tensor that is not plain, or not of real numbers
    or `bools`, and where torch is older than 2.10.
    """
    torch, dtypes = _torch(), (*NUMBERS, *[BOOLS][: int(bools)])
    try:
        from topocomm.native._native import bind_view

        kind = torch.Tensor
        return bind_view(kind, kind.__dlpack_c_exchange_api__, torch.strided, kind.is_neg, dtypes)
    except (AttributeError, ImportError):
        return lambda tensor, flat: None


def device_views(layout: Layout, buffer: torch.Tensor, offset: int, rows: int) -> dict[str, torch.Tensor]:
    """Return the fields of the packed chunk at byte `offset` of a uint8 tensor, as tensors [rows, *dims].

    Raises:
        OperatorError: torch has no counterpart of a dtype.
    """
    views = {}
    for bound, start in zip(layout.fields, layout.addresses(offset, rows), strict=True):
        dtype = getattr(_torch(), bound.dtype.name, None)
        if dtype is None:
            raise OperatorError(f"field {bound.name!r}: torch has no {bound.dtype}; convert it first")
        flat = buffer[start : start + rows * bound.row_bytes].view(dtype)
        views[bound.name] = flat.view(rows, *bound.row_shape)
    return views


def is_tensor(x: Any) -> bool:
    """Return whether x is a torch tensor; imports nothing."""
    return hasattr(x, "is_cuda")


@cache
def numpy_dtype(dtype: Any) -> np.dtype[Any]:
    """Return NumPy's dtype for a torch one; OperatorError where NumPy has none."""
    try:
        return as_array(_torch().empty(0, dtype=dtype)).dtype
    except TypeError as error:
        raise OperatorError(f"NumPy has no {dtype} ({error}); convert it first") from None


@cache
def torch_dtype(dtype: np.dtype[Any]) -> Any:
    """Return the torch dtype for NumPy's; OperatorError where torch has none."""
    return as_tensor(np.empty(0, dtype)).dtype


def tensor_fold(
    name: str, combine: Combine, operands: Sequence[Mapping[str, NDArray[Any]]]
) -> Callable[[Mapping[str, Any]], None]:
    """Return the left fold of `operands` by an operator's `combine`, on CPU tensors that share their memory."""
    try:
        tensors = [{field: as_tensor(array) for field, array in operand.items()} for operand in operands]
    except OperatorError as error:
        raise OperatorError(f"operator {name!r}: {error}") from None
    fold_tensors = device_fold(name, combine, tensors)

    def fold(target: Mapping[str, Any]) -> None:
        fold_tensors({field: as_tensor(array) for field, array in target.items()})

    return fold


def device_fold(
    name: str, combine: Combine, operands: Sequence[Mapping[str, torch.Tensor]], *, arrays: bool = True
) -> Callable[[Mapping[str, torch.Tensor]], None]:
    """Return the left fold of `operands`, tensors [rows, *dims] by field, by an operator's `combine`, on any device.

    `arrays` says whether `combine` may return NumPy arrays.
    """
    first, *rest = operands
    is_checked = False

    def fold(target: Mapping[str, torch.Tensor]) -> None:
        nonlocal is_checked
        acc: Mapping[str, Any] = first
        for right in rest:
            try:
                acc = combine(acc, right)
            except TypeError as error:
                device = next(iter(target.values())).device
                if "numpy" not in str(error).lower() or device.type == "cpu":
                    raise
                raise OperatorError(
                    f"operator {name!r}: combine takes NumPy arrays only, got tensors on {device}; install triton "
                    "where the operator has a Triton combine for this layout, else give it one (`triton=`)"
                ) from error
            if not is_checked:
                check_result(name, acc, first)
        is_checked = True
        for field, tensor in target.items():
            _write(name, field, tensor, field_of(name, acc, field, tuple(tensor.shape)), arrays)

    return fold


def _write(operator: str, name: str, target: torch.Tensor, result: Any, arrays: bool) -> None:
    torch = _torch()
    if not isinstance(result, torch.Tensor):
        if not arrays:
            raise OperatorError(
                f"operator {operator!r}: combine made field {name!r} {type(result).__name__} of tensors on a device; "
                "expected a tensor there"
            )
        result = as_tensor(np.ascontiguousarray(result))
    elif not arrays and result.device != target.device:
        raise OperatorError(
            f"operator {operator!r}: combine made field {name!r} on {result.device}, not {target.device}"
        )
    if not torch.can_cast(result.dtype, target.dtype):
        raise not_its_dtype(operator, name, result.dtype, target.dtype)
    target.copy_(result.detach())


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        raise MissingExtraError("an operator on tensors", "torch", "attention") from None
    return torch


def check_result(operator: str, result: Any, operand: Mapping[str, Any]) -> None:
    """Check that what `combine` returned can be its operand, as `operand` is.

    Raises:
        OperatorError: A field is missing, is none of the operator's, or has another shape or kind of dtype.
    """
    for name, array in operand.items():
        value = field_of(operator, result, name, tuple(array.shape))
        if is_tensor(value) and is_tensor(array):
            fits = _torch().can_cast(value.dtype, array.dtype)
        else:
            fits = (
                is_tensor(value) or is_tensor(array) or np.can_cast(np.asarray(value).dtype, array.dtype, "same_kind")
            )
        if not fits:
            raise not_its_dtype(operator, name, getattr(value, "dtype", type(value).__name__), array.dtype)
    if unknown := [name for name in result if name not in operand] if isinstance(result, Mapping) else []:
        raise OperatorError(
            f"operator {operator!r}: combine made field {unknown[0]!r}, which is none of its fields {list(operand)}"
        )


def field_of(operator: str, result: Any, name: str, shape: tuple[int, ...]) -> Any:
    """Return one field of what `combine` returned, of the shape that it must have.

    Raises:
        OperatorError: The field is missing, or has another shape: broadcasting it would give a wrong value.
    """
    try:
        value = result[name]
    except (KeyError, IndexError, TypeError):
        got = list(result) if isinstance(result, Mapping) else type(result).__name__
        raise OperatorError(
            f"operator {operator!r}: combine must return a dict of its fields, and field {name!r} is missing; got {got}"
        ) from None
    if np.shape(value) != shape:
        raise OperatorError(
            f"operator {operator!r}: combine made field {name!r} of shape {list(np.shape(value))}, not {list(shape)}"
        )
    return value


def not_its_dtype(operator: str, name: str, got: Any, expected: Any) -> OperatorError:
    """Return the error for a field of a dtype that is not cast silently."""
    return OperatorError(f"operator {operator!r}: combine made field {name!r} {got}, not {expected}; convert it there")
