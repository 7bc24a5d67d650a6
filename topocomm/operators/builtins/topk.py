"""TOPK(k): the k greatest values of every row, each with a payload, such as its index."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from topocomm.errors import OperatorError
from topocomm.operators.dtypes import kind, lowest, only, whole
from topocomm.operators.kernels.cpu import compiled_kernel
from topocomm.operators.layout import Arrays, Field, Layout
from topocomm.operators.operator import Operator, TritonCombine

VALUES, PAYLOAD = "values", "payload"
EMPTY = -1
"""Payload of an empty place."""
MOST_ON_GPU = 1024
"""Most items whose merge fits in the registers of a GPU's program."""


@cache
def _topk(k: int) -> Operator:
    def refuses(layout: Layout) -> str | None:
        items = dict(layout.dims)["k"]
        if items != k:
            return f"takes rows of {k} items, got {items}; topk_value(values, {k}) makes them"
        return only("iu", "f", alike=(VALUES,))(layout)

    def triton(layout: Layout) -> TritonCombine | None:
        if k > MOST_ON_GPU:
            return None
        from topocomm.operators.kernels.gpu_formulas import merge_sorted

        dtype = layout.fields[0].dtype
        least = 0 if kind(dtype) == "f" else int(lowest(dtype))  # of floats it is -inf
        return TritonCombine("triton.topk/1", merge_sorted, (k, least, (k - 1).bit_length()), long=True)

    return Operator(
        f"topk({k})",
        (Field(VALUES, ("*rows", "k")), Field(PAYLOAD, ("*rows", "k"), np.int64)),
        _combine,
        lambda dtypes: {VALUES: lowest(dtypes[VALUES]), PAYLOAD: EMPTY},
        commutative=True,
        kernel=lambda layout: compiled_kernel("topk", 1, [f.dtype for f in layout.fields]),
        default_dims={"k": k},
        refuses=refuses,
        sample=_sample,
        triton=triton,
    )


def TOPK(k: int) -> Operator:
    """The operator that keeps the `k` greatest of the items of both sides; the same object for the same k.

    A value is `values` [*rows, k], floats or integers, sorted from the greatest, and `payload` int64 [*rows, k], 0 or
    more. `topk_value` makes one from any number of items. NaN counts as greatest; of equal values the lower payload
    goes first, so it commutes; -0 counts, and comes out, as +0. Places without an item, and the identity, hold the
    least value (-inf) with payload -1 and go last. On GPUs it folds up to k = 1,024; beyond, in host memory.

    Raises:
        OperatorError: k is no whole number, or less than 1.
    """
    return _topk(whole("TOPK", "k", k))


def topk_value(values: ArrayLike, k: int, payload: ArrayLike | None = None) -> dict[str, NDArray[Any]]:
    """A value of TOPK(k) from `n` items a row, of which the k greatest are kept, or fewer if there are fewer.

    Args:
        values: [*rows, n], floats or integers, in any order; NumPy, n may be 0.
        k: Items kept.
        payload: Integers, 0 or more, that broadcast to the shape of `values`; their index along the last axis if None.

    Returns:
        `values` [*rows, k] of the same dtype and `payload` int64 [*rows, k], as TOPK describes.

    Raises:
        OperatorError: The values have no axis, are no numbers with an order, or a payload is negative or does not
            broadcast; k is no whole number, or less than 1.
    """
    k = whole("topk_value", "k", k)
    items = np.asarray(values)
    if items.ndim == 0 or kind(items.dtype) not in ("i", "u", "f"):
        raise OperatorError(f"topk_value: expected values [*rows, n] of floats or integers, got {items.dtype} "
                            f"{list(items.shape)}")  # fmt: skip
    places = np.arange(items.shape[-1]) if payload is None else np.asarray(payload)
    numbers = kind(places.dtype) in ("i", "u")
    if places.size and not (numbers and places.min() >= 0):
        got = places.min() if numbers else places.dtype
        raise OperatorError(f"topk_value: payload must be integers, 0 or more, got {got}")
    try:
        places = np.broadcast_to(places.astype(np.int64), items.shape)
    except ValueError:
        raise OperatorError(f"topk_value: payload {list(places.shape)} does not broadcast to the shape of values, "
                            f"{list(items.shape)}") from None  # fmt: skip
    missing = ((0, 0),) * (items.ndim - 1) + ((0, max(0, k - items.shape[-1])),)
    padded = np.pad(items, missing, constant_values=lowest(items.dtype))
    return _best(padded, np.pad(places, missing, constant_values=EMPTY), k)


def _best(values: NDArray[Any], payload: NDArray[np.int64], k: int) -> dict[str, NDArray[Any]]:
    order = np.lexsort((payload.view(np.uint64), ~_ascending(values)), axis=-1)[..., :k]  # -1 is last as unsigned
    best = np.take_along_axis(values, order, -1)
    plus_zero = best + np.zeros((), best.dtype)
    return {VALUES: plus_zero, PAYLOAD: np.take_along_axis(payload, order, -1)}


def _ascending(values: NDArray[Any]) -> NDArray[Any]:
    """Return integers in the order of the values, NaN above all, -0 as +0."""
    if kind(values.dtype) != "f":
        return values
    numbers = values.astype(np.float64) + 0.0
    bits = numbers.view(np.int64)
    return np.where(np.isnan(numbers), np.iinfo(np.int64).max, bits ^ ((bits >> 63) & np.iinfo(np.int64).max))


def _combine(left: Arrays, right: Arrays) -> Arrays:
    values = np.concatenate([left[VALUES], right[VALUES]], axis=-1)
    return _best(values, np.concatenate([left[PAYLOAD], right[PAYLOAD]], axis=-1), left[VALUES].shape[-1])


def _sample(rng: np.random.Generator, layout: Layout) -> Arrays:
    """Items of few values, so that there are ties, with payloads that differ, and empty places."""
    dtype, k = layout.fields[0].dtype, dict(layout.dims)["k"]
    numbers = rng.integers(0, 5, (*layout.leading, k)).astype(dtype)
    if kind(dtype) == "f":
        special = rng.choice(np.array([-np.inf, np.inf, np.nan, -0.0, -1.5]), numbers.shape).astype(dtype)
        numbers = np.where(rng.random(numbers.shape) < 0.3, special, numbers)
    payload = rng.integers(0, 1 << 40, numbers.shape)
    count = int(rng.integers(0, k + 1))
    return topk_value(numbers[..., :count], k, payload[..., :count])
