"""Folds of operators on the card beside the CPU's: every operator with every dtype that it takes."""

from __future__ import annotations

from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import torch
from card import Card
from numpy.typing import NDArray

import topocomm as tc
from attention import LOGSUMEXP
from problems.check_kinds import AS_CPU, Found, poisoned
from topocomm import Layout, Operator, bind_device_folds
from topocomm.operators.dtypes import kind

DTYPES = (*(np.dtype(name) for name in ("f4", "f8", "f2", "i4", "i8", "u1", "c8", "?")), np.dtype(ml_dtypes.bfloat16))
ELEMENTWISE = (
    tc.SUM, tc.PROD, tc.MAX, tc.MIN, tc.ARGMAX, tc.ARGMIN, tc.BAND, tc.BOR, tc.BXOR, tc.LOGADDEXP, tc.WELFORD,
    tc.AFFINE,
)  # fmt: skip
OPERATORS = (*ELEMENTWISE, tc.AFFINE_MATRIX(3), LOGSUMEXP)
Value = dict[str, NDArray[Any]]


@cache
def pairs() -> list[tuple[Operator, np.dtype[Any]]]:
    """Return all pairs of operator and dtype."""
    found: list[tuple[Operator, np.dtype[Any]]] = []
    for operator in OPERATORS:
        fixed = all(f.dtype is not None for f in operator.fields)
        dtypes = [dtype for dtype in DTYPES[: 1 if fixed else None] if _layout(operator, dtype, (4,)) is not None]
        found += [(operator, dtype) for dtype in dtypes]
    return found


def check(card: Card, index: int) -> Found:
    """Check one pair, with operands and rows drawn from the index."""
    operator, dtype = pairs()[index % len(pairs())]
    rng = np.random.default_rng(index)
    rows, count = int(rng.choice(card.sizes.fold_rows)), int(rng.choice([2, 3, 8, 9]))
    layout = _layout(operator, dtype, (rows,))
    assert layout is not None, "as in pairs()"
    found = Found("folds", f"{operator.name}, {dtype}, {count} operands of {rows} rows")
    values = [_value(rng, operator, layout) for _ in range(count)]
    step = -(-layout.packed_bytes(rows) // 64) * 64 + 64
    host = np.full((count + 1) * step, 0xA5, np.uint8)
    offsets = [step * slot for slot in range(count)]
    for offset, value in zip(offsets, values, strict=True):
        for name, view in layout.views(host, offset, rows).items():
            view[...] = value[name]
    buffer = torch.from_numpy(host.copy()).to(card.place)
    with poisoned(), np.errstate(all="ignore"):
        fold = bind_device_folds(operator, layout, buffer, [(rows, offsets, count * step)])
        fold()
        first = buffer.clone()
        card.graph(fold)()
        card.synchronize()
        operator.bind_fold(layout, host, rows, offsets)(layout.views(host, count * step, rows))
    found.graph = True
    got = first.cpu().numpy()
    faults = [None if torch.equal(first, buffer) else "a replayed graph differs in bits"]
    used = count * step, count * step + layout.packed_bytes(rows)
    beside = (got[: used[0]] == host[: used[0]]).all() and (got[used[1] :] == 0xA5).all()
    faults.append(None if beside else "wrote beside the result")
    exactly = operator.compiled_fold(layout) is not None
    for name, wanted in layout.views(host, count * step, rows).items():
        faults.append(_difference(found, layout.views(got, count * step, rows)[name], wanted, exactly))
    found.wrong = "; ".join(fault for fault in faults if fault) or None
    return found


def _difference(found: Found, got: NDArray[Any], wanted: NDArray[Any], exactly: bool) -> str | None:
    """What differs; where the CPU's compiled fold ran, in any bit but which NaN a NaN is."""
    if kind(wanted.dtype) in "biu":
        return None if np.array_equal(got, wanted) else "differs from the CPU"
    wide = np.complex128 if kind(wanted.dtype) == "c" else np.float64
    with np.errstate(all="ignore"):
        one, other = got.astype(wide), wanted.astype(wide)
        apart = np.abs(one - other) / np.maximum(1.0, np.abs(other))
        alike = (one == other) | (np.isnan(one) & np.isnan(other))
    apart = np.where(alike, 0.0, np.where(np.isnan(apart), np.inf, apart))
    found.off_cpu = max(found.off_cpu or 0.0, float(apart.max(initial=0.0)))
    size = wanted.dtype.itemsize // (2 if kind(wanted.dtype) == "c" else 1)
    near = AS_CPU if size > 2 else 2.0**-7
    if found.off_cpu > near:
        return f"{found.off_cpu:.2e} from the CPU, {near:.1e} allowed"
    signs = one[alike & (one == 0)].view(np.float64), other[alike & (one == 0)].view(np.float64)
    same = alike.all() and np.array_equal(np.signbit(signs[0]), np.signbit(signs[1]))
    return "differs from the CPU in bits" if exactly and not same else None


def _value(rng: np.random.Generator, operator: Operator, layout: Layout) -> Value:
    if operator.sample is not None:
        return {name: np.asarray(x) for name, x in operator.sample(rng, layout).items()}
    made: Value = {}
    for f in layout.fields:
        shape, what = (*layout.leading, *f.row_shape), kind(f.dtype)
        if what in "bu":
            made[f.name] = rng.integers(0, 2 if what == "b" else 200, shape).astype(f.dtype)
        elif what == "i":
            made[f.name] = rng.integers(0, 3 if f.name in ("index", "count") else 1000, shape).astype(f.dtype)
        else:
            x = rng.normal(size=shape) + (1j * rng.normal(size=shape) if what == "c" else 0)
            plain = rng.random(shape) < (1.0 if "matrix" in operator.name or what == "c" else 0.8)
            made[f.name] = np.where(plain, x, rng.choice([0.0, -0.0, np.inf, -np.inf, np.nan], shape)).astype(f.dtype)
    return made


def _layout(operator: Operator, dtype: np.dtype[Any], leading: tuple[int, ...]) -> Layout | None:
    """Bind the fold; None if the operator refuses the dtype."""
    sizes = {"d": 5, **dict(operator.default_dims)} if operator is LOGSUMEXP else dict(operator.default_dims)
    shapes = {
        f.name: ((*leading, *(sizes[d] for d in f.dims if d != "*rows")), dtype if f.dtype is None else f.dtype)
        for f in operator.fields
    }
    try:
        return operator.layout(shapes)
    except tc.OperatorError:
        return None
