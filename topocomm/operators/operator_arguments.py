"""Checks of the arguments of an Operator, when it is made: a wrong one is told there, not in the call that needs it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from inspect import signature
from typing import Any

import numpy as np

from topocomm.command_parser import nearest
from topocomm.errors import OperatorError
from topocomm.operators.layout import ROWS, BoundField, Field

OPTIONAL_FUNCTIONS = {
    "kernel": ("layout",),
    "triton": ("layout",),
    "refuses": ("layout",),
    "sample": ("rng", "layout"),
    "lower_to_sum": ("layout",),
}
"""Arguments of an operator that are functions or None, and what they take."""


def checked_fields(operator: str, fields: Any) -> tuple[Field, ...]:
    """Return the fields of an operator, whose axes and names fit together.

    Raises:
        OperatorError: They do not.
    """
    if isinstance(fields, Field):  # a NamedTuple, so a sequence
        raise OperatorError(
            f"operator {operator!r}: fields must be a tuple of Field, got one Field; write (Field(...),)"
        )
    if not isinstance(fields, Sequence) or isinstance(fields, str):
        raise OperatorError(
            f"operator {operator!r}: fields must be a tuple of Field, such as (Field('x'),), got {_shown(fields)}"
        )
    if not fields:
        raise OperatorError(f"operator {operator!r} has no fields; it needs at least one")
    checked = tuple(_checked_field(operator, f) for f in fields)
    with_rows = [ROWS in f.dims for f in checked]
    if any(with_rows) and not all(with_rows):
        raise OperatorError(f"operator {operator!r}: either every field or none starts with {ROWS!r}")
    for f in checked:
        if ROWS in f.dims[1:]:
            raise OperatorError(f"operator {operator!r}: field {f.name!r} must have {ROWS!r} first")
    names = [f.name for f in checked]
    if len(set(names)) < len(names):
        raise OperatorError(f"operator {operator!r}: fields {names}: expected different names")
    return checked


def _checked_field(operator: str, f: Any) -> Field:
    if not isinstance(f, Field):
        raise OperatorError(
            f"operator {operator!r}: fields must be a tuple of Field, such as (Field('x'),), got {_shown(f)} in it"
        )
    if not isinstance(f.name, str) or not f.name:
        raise OperatorError(f"operator {operator!r}: the name of a field must be a string, got {_shown(f.name)}")
    if not isinstance(f.dims, (tuple, list)) or not all(isinstance(axis, str) for axis in f.dims):
        raise OperatorError(
            f"operator {operator!r}: field {f.name!r}: dims must be a tuple of names, such as ({ROWS!r}, 'dim'), "
            f"got {_shown(f.dims)}"
        )
    try:
        np.dtype(f.dtype)
    except (TypeError, ValueError):
        raise OperatorError(
            f"operator {operator!r}: field {f.name!r}: dtype must be one of NumPy's, or None for that of the array "
            f"given, got {_shown(f.dtype)}"
        ) from None
    return f._replace(dims=tuple(f.dims))


def check_functions(operator: str, functions: Mapping[str, Any]) -> None:
    """Raise an OperatorError where `combine`, or an optional argument that is there, is no function of its kind."""
    combine = functions["combine"]
    if not callable(combine) or isinstance(combine, np.ufunc):
        raise OperatorError(
            f"operator {operator!r}: combine must be a function of two mappings from field name to array, such as "
            f"lambda a, b: {{'x': a['x'] + b['x']}}, got {_shown(combine)}"
        )
    try:
        signature(combine).bind({}, {})
    except TypeError as error:
        raise OperatorError(f"operator {operator!r}: combine must take two values (left, right): {error}") from None
    except ValueError:  # a function of another language, which does not say what it takes
        pass
    for name, takes in OPTIONAL_FUNCTIONS.items():
        function = functions[name]
        if function is not None and not callable(function):
            raise OperatorError(f"operator {operator!r}: {name} must be a function or None, got {_shown(function)}")
        try:
            bind = None if function is None else signature(function).bind
        except (TypeError, ValueError):
            continue
        try:
            _ = bind and bind(*takes)
        except TypeError as error:
            own = getattr(function, "__name__", "function")
            remedy = f"; wrap a function of one row with topocomm.row_kernel({own})" if name == "kernel" else ""
            raise OperatorError(
                f"operator {operator!r}: {name} takes ({', '.join(takes)}), {own} does not: {error}{remedy}"
            ) from None


def check_commutative(operator: str, claimed: Any) -> None:
    """Raise an OperatorError where `commutative` is no bool: any other word would count as a claim."""
    if not isinstance(claimed, (bool, np.bool_)):
        raise OperatorError(f"operator {operator!r}: commutative must be True or False, got {_shown(claimed)}")


def fields_apart(expected: Iterable[Any], got: Iterable[Any]) -> str:
    """Return which fields are missing and which are unknown, in words; empty where they are the same."""
    expected, got = list(expected), list(got)
    missing, parts = [name for name in expected if name not in got], []
    for name in [name for name in got if name not in expected]:
        meant = nearest(str(name), missing)
        missing = [other for other in missing if other != meant]
        parts.append(f"unknown {name!r}" + (f", did you mean {meant!r}?" if meant else ""))
    return "; ".join([f"missing {', '.join(map(repr, missing))}"] * bool(missing) + parts)


def check_default_dims(operator: str, sizes: Any) -> None:
    """Raise an OperatorError where `default_dims` is no mapping from names of axes to whole numbers."""
    if not isinstance(sizes, Mapping) or not all(isinstance(n, (int, np.integer)) and n >= 0 for n in sizes.values()):
        raise OperatorError(
            f"operator {operator!r}: default_dims must map names of axes to whole numbers, such as "
            f"{{'dim': 128}}, got {_shown(sizes)}"
        )


def by_field(operator: str, identity: Any, names: Sequence[str]) -> Mapping[str, Any]:
    """Return an identity as a mapping from field name to scalar or array; of one field it may be given bare.

    Raises:
        OperatorError: It has other fields, or something else than numbers.
    """
    values: Mapping[str, Any] = identity
    if not isinstance(identity, Mapping):
        if len(names) > 1 or identity is None:
            raise OperatorError(
                f"operator {operator!r}: identity must be a mapping with the fields {list(names)}, such as "
                f"{dict.fromkeys(names, 0)}, or a function from their dtypes to one; got {_shown(identity)}"
            )
        values = {names[0]: identity}
    if sorted(values, key=str) != sorted(names):
        raise OperatorError(
            f"operator {operator!r}: identity must have the fields {list(names)}; {fields_apart(names, values)}"
        )
    for name, value in values.items():
        try:
            kind = np.asarray(value).dtype.kind
        except (TypeError, ValueError):
            kind = "O"
        if kind in "OUSmM":
            raise OperatorError(
                f"operator {operator!r}: identity of field {name!r} must be a number or an array of them, "
                f"got {_shown(value)}"
            )
    return values


def check_identity_fits(operator: str, identity: Mapping[str, Any], fields: Sequence[BoundField]) -> None:
    """Raise an OperatorError where an identity does not fit a row: another shape, or a number that its dtype lacks."""
    for f in fields:
        try:
            with np.errstate(over="ignore", invalid="raise"):
                np.empty(f.row_shape, f.dtype)[...] = identity[f.name]
        except (TypeError, ValueError, ArithmeticError) as error:
            raise OperatorError(
                f"operator {operator!r}: identity of field {f.name!r}, {_shown(identity[f.name])}, does not fit "
                f"{f.dtype} {list(f.row_shape)} ({error}); give one that does, or a function from the dtypes"
            ) from None


def _shown(value: Any) -> str:
    words = repr(value)
    return f"{type(value).__name__} {words if len(words) <= 60 else words[:57] + '...'}"
