"""Values of operators in packed memory, for tests."""

import ml_dtypes
import numpy as np

from topocomm import OperatorError
from topocomm.operators.builtin import READY, SIZED

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
FLOATS = [np.dtype(name) for name in ("f8", "f4", "f2")] + [BFLOAT16]
INTEGERS = [np.dtype(name) for name in ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8")]
DTYPES = [*FLOATS, *INTEGERS, np.dtype("?"), np.dtype("c8"), np.dtype("c16")]
EVERY = [*READY, *(of_size(3) for of_size in SIZED)]


def layout_of(operator, dtype, leading=(4,)):
    """The layout for a dtype, or None where it is refused."""
    sizes = dict(operator.default_dims)
    shapes = {
        f.name: ((*leading, *(sizes[d] for d in f.dims if d != "*rows")), f.dtype if f.dtype is not None else dtype)
        for f in operator.fields
    }
    try:
        return operator.layout(shapes)
    except OperatorError:
        return None


PAIRS = [(operator, dtype) for operator in EVERY for dtype in DTYPES if layout_of(operator, dtype) is not None]
NAMES = [f"{operator.name}-{dtype.name}" for operator, dtype in PAIRS]


def any_values(rng, dtype, shape):
    """Any bits that the dtype can hold; of wide floats ordinary and special numbers."""
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    if dtype.kind == "c":
        parts = any_values(rng, np.dtype(f"f{dtype.itemsize // 2}"), (*shape, 2))
        return parts.view(dtype)[..., 0]
    if dtype.itemsize == 2:
        return rng.integers(0, 1 << 16, shape).astype(np.uint16).view(dtype)
    limits = np.finfo(dtype)
    special = [0, -0.0, np.inf, -np.inf, np.nan, limits.max, -limits.max, limits.tiny, limits.smallest_subnormal, 1, -1]
    numbers = rng.normal(size=shape) * 10.0 ** rng.integers(-6, 6, shape)
    return np.where(rng.random(shape) < 0.4, rng.choice(special, shape), numbers).astype(dtype)


def any_value(rng, operator, layout):
    """A value of a layout: from the operator's own sample where not any arrays are one."""
    if operator.name.startswith("topk"):
        return operator.sample(rng, layout)
    value = {f.name: any_values(rng, f.dtype, (*layout.leading, *f.row_shape)) for f in layout.fields}
    for name in {"index", "count"} & set(value):  # ties, and empty ones
        value[name] = rng.integers(0, 3, layout.leading).astype(value[name].dtype)
    return value


def fold(operator, layout, values, *, into=None, tensors=False):
    """What `bind_fold` makes of the values; `into` is the operand whose memory the result replaces."""
    rows = layout.rows
    size = -(-layout.packed_bytes(rows) // 64) * 64 + 64
    buffer = np.full((len(values) + 1) * size, 0xA5, np.uint8)
    offsets = [size * slot for slot in range(len(values))]
    for offset, value in zip(offsets, values, strict=True):
        for name, view in layout.views(buffer, offset, rows).items():
            view[...] = np.asarray(value[name]).reshape(view.shape)
    untouched = [buffer[offset : offset + size].copy() for offset in offsets]
    out = len(values) * size if into is None else offsets[into]
    target = layout.views(buffer, out, rows)
    operator.bind_fold(layout, buffer, rows, offsets, tensors=tensors)(target)
    for slot, offset in enumerate(offsets):
        if slot != into:
            assert np.array_equal(buffer[offset : offset + size], untouched[slot]), f"operand {slot} was written to"
    used = layout.packed_bytes(rows)
    assert (buffer[out + used : out + size] == 0xA5).all(), "wrote behind the result"
    return {f.name: target[f.name].reshape((*layout.leading, *f.row_shape)).copy() for f in layout.fields}


def chain(operator, values):
    """((a.b).c) by `combine`."""
    made = values[0]
    for value in values[1:]:
        made = operator.combine(made, value)
    return made


def bits(array):
    """The bytes of an array, with every NaN the same."""
    array = np.ascontiguousarray(array)
    if array.dtype.kind == "c":
        array = array.view(f"f{array.dtype.itemsize // 2}")
    with np.errstate(invalid="ignore"):
        if array.dtype.kind == "f" or array.dtype == BFLOAT16:
            array = np.where(array == array, array, np.array(np.nan, array.dtype))
    return array.tobytes()


def assert_same_bits(made, want):
    for name, array in want.items():
        assert made[name].dtype == array.dtype
        assert bits(made[name]) == bits(array), f"{name}: {first_difference(made[name], array)}"


def first_difference(one, other):
    places = [i for i in np.ndindex(one.shape) if bits(one[i]) != bits(other[i])]
    return places[0], one[places[0]], other[places[0]]
