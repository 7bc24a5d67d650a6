"""Associative operators over named fields, and the memory layout of their values.

A value of an operator is one array per `Field`. All fields share the leading shape `*rows`; what is left of
their shape is named, and names bind to sizes at the call. Values travel packed: a chunk of n rows is, field by
field, the n rows of that field, each field aligned to its item size. So a chunk is split by rows only, and an
operator whose fields have no rows is never split.
"""

from __future__ import annotations

import ctypes
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from topocomm.command_parser import did_you_mean
from topocomm.errors import OperatorError
from topocomm.operators.fingerprint import closed_over, fingerprint
from topocomm.operators.layout import ROWS, Arrays, BoundField, Buffer, Field, Fold, Layout
from topocomm.operators.operator_arguments import (
    by_field,
    check_commutative,
    check_default_dims,
    check_functions,
    check_identity_fits,
    checked_fields,
    fields_apart,
)
from topocomm.operators.sum_lowering import SumLowering
from topocomm.operators.tensors import check_result, field_of, not_its_dtype, tensor_fold


class Kernel(NamedTuple):
    """A fused left fold ((a.b).c) of packed chunks of one layout.

    `version` enters the agreement between ranks: kernels that may round differently, and compiled ones and others,
    have different versions.
    `bind(layout, buffer, rows, offsets)` returns a `Fold` that reads the packed chunks of `rows` rows at byte
    offsets `offsets` of `buffer`, folds them left to right, and writes the result to C-contiguous arrays, which may
    be those of the first operand, or of either of two. None where there is `compiled`: that is then called.
    `compiled`, where there is one, is the address of a C function `void fold(int64_t *task)` that does the same
    without Python, wherever the arrays are. The words of a task (`fold_task`): rows, number of operands, items per
    row of every field, then the addresses of the fields of the result and of every operand.
    """

    version: str
    bind: Callable[[Layout, Buffer, int, Sequence[int]], Fold] | None = None
    compiled: int | None = None


class TritonCombine(NamedTuple):
    """Combine of two values of one layout in a Triton kernel.

    `version` tells its rounding from that of others, as `Kernel.version` does.
    `function` is a `@triton.jit` function `combine(left, right)`, or with `constants`, whole numbers, `combine(left,
    right, constants)`. A value is a tuple with a tile [ROWS, WIDTH] per field, of the field's dtype: WIDTH is the items
    of a row (the product of the named axes; 1 without any) padded to a power of two, and what the padding holds is
    ignored. bool comes as uint8, complex numbers as floats, twice as many. It returns such a tuple, which is rounded to
    the fields' dtypes; multiplications and additions are not fused.
    `long` is for functions that make much code: operands then follow each other in a loop, which has it once.
    """

    version: str
    function: Any
    constants: tuple[int, ...] = ()
    long: bool = False


def fold_task(layout: Layout, rows: int, places: Sequence[int]) -> list[int]:
    """Return the task of a compiled fold; `places` are addresses of packed chunks, the result's first."""
    items = [prod(f.row_shape) for f in layout.fields]
    return [rows, len(places) - 1, *items, *(at for place in places for at in layout.addresses(place, rows))]


NUMPY_NAMES = {
    "add": "SUM",
    "sum": "SUM",
    "multiply": "PROD",
    "prod": "PROD",
    "maximum": "MAX",
    "max": "MAX",
    "minimum": "MIN",
    "min": "MIN",
    "argmax": "ARGMAX",
    "argmin": "ARGMIN",
    "bitwiseand": "BAND",
    "bitwiseor": "BOR",
    "bitwisexor": "BXOR",
    "logaddexp": "LOGADDEXP",
}
"""Built-in operators by NumPy's names, in small letters without `_`."""


MPI_NAMES = {name: f"topocomm.{name}" for name in ("SUM", "PROD", "MAX", "MIN", "BAND", "BOR", "BXOR")} | {
    "MAXLOC": "topocomm.ARGMAX, of the fields value and index",
    "MINLOC": "topocomm.ARGMIN, of the fields value and index",
    "LAND": "topocomm.BAND, of bools",
    "LOR": "topocomm.BOR, of bools",
    "LXOR": "topocomm.BXOR, of bools",
}
"""Built-in operators by MPI's names."""


@dataclass(frozen=True, eq=False)
class Operator:
    """An associative operator.

    Attributes:
        name: How users and files name it; operators found by entry point carry the entry point's name.
        fields: The arrays that make up one value.
        combine: `combine(left, right) -> result` over mappings from field name to array [rows, *dims]; must be
            associative and must not write to its arguments.
        identity: The value e with combine(e, x) = combine(x, e) = x: per field one scalar, or an array that
            broadcasts to a row; or a function from the bound dtypes by field name to such a mapping. Of one field it
            may be given bare, as 0.
        commutative: True if combine(a, b) equals combine(b, a): plans may then reorder operands (all ranks hold
            the same bits all the same); otherwise they keep the operands in rank order.
        kernel: The fused CPU kernel of a layout, or None where it has none; without one `combine` runs.
        triton: How tiles of a layout are combined on GPUs, or None where that is not said; without it `combine` gets
            tensors of the GPU. It may raise ImportError where triton is missing, which counts as None.
        default_dims: Sizes of the named axes where there is no array to take them from (`topocomm plan`).
        refuses: What a layout is refused for ("takes integers, got float32"), or None if it is taken.
        sample: `sample(rng, layout)` makes a value to try the laws on, a dict of arrays [*layout.leading, *dims], for
            operators that do not take just any arrays (sorted ones, counts); see `check_laws`.
        lower_to_sum: How values of a layout are reduced by one elementwise SUM, or None where they cannot be; for
            `Communicator.prepare_sum`.

    Raises:
        OperatorError: An argument is of another kind, or fields, axes and identity do not fit together.
    """

    name: str
    fields: tuple[Field, ...]
    combine: Callable[[Arrays, Arrays], Arrays]
    identity: Mapping[str, Any] | Callable[[Mapping[str, np.dtype[Any]]], Any] | complex | np.generic | NDArray[Any]
    commutative: bool = False
    kernel: Callable[[Layout], Kernel | None] | None = None
    triton: Callable[[Layout], TritonCombine | None] | None = None
    default_dims: Mapping[str, int] = field(default_factory=dict)
    refuses: Callable[[Layout], str | None] | None = None
    sample: Callable[[np.random.Generator, Layout], Arrays] | None = None
    lower_to_sum: Callable[[Layout], SumLowering | None] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise OperatorError(f"Operator: name must be a string, got {self.name!r}")
        fields = checked_fields(self.name, self.fields)
        object.__setattr__(self, "fields", fields)
        check_functions(self.name, vars(self))
        if not callable(self.identity):
            object.__setattr__(self, "identity", by_field(self.name, self.identity, [f.name for f in fields]))
        check_default_dims(self.name, self.default_dims)
        check_commutative(self.name, self.commutative)

    def __repr__(self) -> str:
        fields = ", ".join(f"{f.name} [{', '.join(f.dims)}] {_dtype_words(f.dtype)}" for f in self.fields)
        order = "any order" if self.commutative else "rank order"
        forms = [name for name in ("kernel", "triton", "lower_to_sum") if getattr(self, name) is not None]
        return f"<Operator {self.name}: {fields}; {order}; {', '.join(forms) or 'combine alone'}>"

    @cached_property
    def splittable(self) -> bool:
        """Whether a value has rows that chunks can divide."""
        return self.fields[0].dims[:1] == (ROWS,)

    @cached_property
    def rule(self) -> str:
        """What tells `combine` from that of another operator of this name, on ranks of one version of Python."""
        held = closed_over(self.combine)
        return "code " + fingerprint(self.combine, with_globals=False) + f" with {held}" * bool(held)

    def layout(self, shapes: Mapping[str, tuple[tuple[int, ...], DTypeLike]]) -> Layout:
        """Bind sizes and dtypes: `shapes` maps every field to (shape, dtype).

        Raises:
            OperatorError: A field is missing or unknown, a dtype differs from the declared one, the named axes or
                leading shapes of two fields differ, or the operator refuses the layout.
        """
        layout = self._bind(shapes)
        reason = self.refuses(layout) if self.refuses is not None else None
        if reason is not None:
            raise OperatorError(f"operator {self.name!r} {reason}")
        return layout

    def default_layout(self, rows: int) -> Layout:
        """Return the layout of `rows` rows with default sizes and dtypes, for planning without arrays.

        A dtype that the operator leaves open is float32, or int64 where it refuses floats.
        """
        lead = (rows,) if self.splittable else ()
        sizes = {}
        for f in self.fields:
            named = [d for d in f.dims if d != ROWS]
            missing = [d for d in named if d not in self.default_dims]
            if missing:
                raise OperatorError(
                    f"operator {self.name!r} has no default size for axis {missing[0]!r}; give the operator one, as "
                    f"default_dims={dict.fromkeys(missing, 5)}"
                )
            sizes[f.name] = (*lead, *(self.default_dims[d] for d in named))

        def shapes(dtype: DTypeLike) -> dict[str, tuple[tuple[int, ...], DTypeLike]]:
            return {f.name: (sizes[f.name], dtype if f.dtype is None else f.dtype) for f in self.fields}

        if self.refuses is not None and self.refuses(self._bind(shapes(np.float32))) is not None:
            return self.layout(shapes(np.int64))
        return self.layout(shapes(np.float32))

    def _bind(self, shapes: Mapping[str, tuple[tuple[int, ...], DTypeLike]]) -> Layout:
        names = [f.name for f in self.fields]
        if sorted(shapes) != sorted(names):
            raise OperatorError(f"operator {self.name!r} takes the fields {names}; {fields_apart(names, shapes)}")
        dims: dict[str, int] = {}
        bound = []
        leading: tuple[int, ...] | None = None
        for f in self.fields:
            shape, dtype = shapes[f.name][0], np.dtype(shapes[f.name][1])
            if f.dtype is not None and dtype != np.dtype(f.dtype):
                raise OperatorError(
                    f"operator {self.name!r}: field {f.name!r} must be {np.dtype(f.dtype)}, "
                    f"got {dtype}; convert it first"
                )
            named = [d for d in f.dims if d != ROWS]
            cut = len(shape) - len(named)
            if cut < 0 or (cut > 0 and not self.splittable):
                raise OperatorError(
                    f"operator {self.name!r}: field {f.name!r} has axes {list(f.dims)}, "
                    f"got an array of shape {list(shape)}"
                )
            rows, row_shape = tuple(shape[:cut]), tuple(shape[cut:])
            for axis, size in zip(named, row_shape, strict=True):
                if dims.setdefault(axis, size) != size:
                    raise OperatorError(
                        f"operator {self.name!r}: axis {axis!r} is {dims[axis]} and, in field {f.name!r}, {size}"
                    )
            if leading is not None and rows != leading:
                raise OperatorError(
                    f"operator {self.name!r}: field {f.name!r} has leading shape {list(rows)}, "
                    f"field {self.fields[0].name!r} has {list(leading)}; all fields share it"
                )
            leading = rows
            bound.append(BoundField(f.name, dtype, row_shape))
        return Layout(tuple(bound), leading or (), tuple(dims.items()), self.splittable)

    def identities(self, layout: Layout) -> Mapping[str, Any]:
        """Return the identity for a layout: per field a scalar, or an array that broadcasts to a row.

        Raises:
            OperatorError: It has other fields, or does not fit the layout.
        """
        identity: Any = self.identity
        if callable(identity):
            identity = identity({f.name: f.dtype for f in layout.fields})
        values = by_field(self.name, identity, [f.name for f in layout.fields])
        check_identity_fits(self.name, values, layout.fields)
        return values

    def bind_fold(
        self, layout: Layout, buffer: Buffer, rows: int, offsets: Sequence[int], *, tensors: bool = False
    ) -> Fold:
        """Bind a fold to the packed chunks of `rows` rows at byte offsets `offsets` of `buffer`.

        With `tensors`, an operator without a kernel for this layout gets torch tensors on that memory in `combine`.

        Raises:
            OperatorError: With `tensors`: torch has no counterpart of a dtype.
        """
        kernel = self._kernel(layout)
        if kernel is not None and kernel.bind is not None:
            return kernel.bind(layout, buffer, rows, offsets)
        if kernel is not None and kernel.compiled is not None:
            return _compiled_fold(kernel.compiled, layout, buffer, rows, offsets)
        if tensors:
            return tensor_fold(self.name, self.combine, [layout.views(buffer, offset, rows) for offset in offsets])
        return self._numpy_fold(layout, buffer, rows, offsets)

    def fold_version(self, layout: Layout, tensors: bool = False) -> str:
        """Return the version of the implementation that `bind_fold` takes; equal versions round equally."""
        kernel = self._kernel(layout)
        return kernel.version if kernel is not None else "torch" if tensors else "numpy"

    def compiled_fold(self, layout: Layout) -> int | None:
        """Return the address of the compiled fold for this layout, or None."""
        kernel = self._kernel(layout)
        return kernel.compiled if kernel is not None else None

    def triton_combine(self, layout: Layout) -> TritonCombine | None:
        """Return the Triton combine for this layout; None without one or without triton."""
        try:
            return self.triton(layout) if self.triton is not None else None
        except ImportError:  # triton is optional
            return None

    def sum_lowering(self, layout: Layout) -> SumLowering | None:
        """Return how values of this layout are reduced by one SUM; None where they are not."""
        return self.lower_to_sum(layout) if self.lower_to_sum is not None else None

    def _kernel(self, layout: Layout) -> Kernel | None:
        return self.kernel(layout) if self.kernel is not None else None

    def _numpy_fold(self, layout: Layout, buffer: Buffer, rows: int, offsets: Sequence[int]) -> Fold:
        first, *rest = (layout.views(buffer, offset, rows) for offset in offsets)
        for operand in (first, *rest):  # a `combine` that writes to its arguments fails on them
            for array in operand.values():
                array.flags.writeable = False
        combine, names = self.combine, [field.name for field in layout.fields]
        is_checked = False

        def fold(target: Arrays) -> None:
            nonlocal is_checked
            acc: Arrays = first
            try:
                for right in rest:
                    acc = combine(acc, right)
                    if not is_checked:
                        check_result(self.name, acc, first)
                is_checked = True
            except ValueError as error:
                if "read-only" in str(error):
                    raise OperatorError(
                        f"operator {self.name!r}: combine must not write to its arguments ({error}); return new arrays"
                    ) from error
                raise
            except (AttributeError, KeyError, TypeError) as error:
                error.add_note(
                    f"raised by combine of operator {self.name!r}, which gets two dicts of arrays, as a[{names[0]!r}], "
                    "and returns one"
                )
                raise
            for name, array in target.items():
                result = field_of(self.name, acc, name, array.shape)
                try:
                    np.copyto(array, result, casting="same_kind")
                except TypeError:
                    raise not_its_dtype(self.name, name, np.asarray(result).dtype, array.dtype) from None

        return fold


def _dtype_words(dtype: DTypeLike | None) -> str:
    return "of any dtype" if dtype is None else str(np.dtype(dtype))


def as_operator(given: Any) -> Operator:
    """Return the argument if it is an operator.

    Raises:
        OperatorError: It is not.
    """
    if not isinstance(given, Operator):
        word = given if isinstance(given, str) else getattr(given, "__name__", "")
        near = _of_mpi(given) or did_you_mean(word, NUMPY_NAMES.values(), NUMPY_NAMES)
        raise OperatorError(
            f"expected an Operator such as topocomm.SUM or TOPK(5), got {type(given).__name__} {word}".rstrip() + near
        )
    return given


def _of_mpi(given: Any) -> str:
    """Return what to give for an operator of mpi4py, to end an error with; nothing is imported."""
    if type(given).__name__ != "Op" or not type(given).__module__.startswith("mpi4py."):
        return ""
    mpi = sys.modules.get(type(given).__module__)
    for theirs, ours in MPI_NAMES.items():
        if given == getattr(mpi, theirs, None):
            return f": MPI.{theirs}; give {ours}"
    return "; give an Operator with the rule of this MPI_Op as its combine"


def _compiled_fold(address: int, layout: Layout, buffer: Buffer, rows: int, offsets: Sequence[int]) -> Fold:
    """Compiled fold called from Python; it releases the GIL while it runs."""
    base = buffer.ctypes.data
    task = np.array(fold_task(layout, rows, [0, *(base + offset for offset in offsets)]), np.int64)
    words, names = 2 + len(layout.fields), [f.name for f in layout.fields]
    function, at = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address), task.ctypes.data
    known: list[Any] = [lambda: None] * len(names)  # the targets of the call before: asking for an address takes 1 us

    def fold(target: Arrays, _alive: Any = (buffer, task)) -> None:
        for index, name in enumerate(names):
            array = target[name]
            if known[index]() is not array:
                task[words + index], known[index] = array.ctypes.data, weakref.ref(array)
        function(at)

    return fold
