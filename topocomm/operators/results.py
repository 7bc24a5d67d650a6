"""What a rule of the user's own gives back, and may not touch, told in the operator's words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from topocomm.errors import OperatorError

Views = TypeVar("Views", bound=Mapping[str, NDArray[Any]])


def read_only(views: Views) -> Views:
    """The same views, which a rule that writes to its arguments cannot spoil: they may be read again."""
    for array in views.values():
        array.flags.writeable = False
    return views


def field_of(operator: str, made: Any, name: str, shape: tuple[int, ...]) -> Any:
    """One field of what `combine` made, of the shape that it must have.

    Raises:
        OperatorError: There is none, or it has another shape: broadcasting it would give a wrong value.
    """
    try:
        found = made[name]
    except (KeyError, IndexError, TypeError):
        got = list(made) if isinstance(made, Mapping) else type(made).__name__
        raise OperatorError(
            f"operator {operator!r}: combine must return a dict of its fields, and field {name!r} is missing; got {got}"
        ) from None
    if np.shape(found) != shape:
        raise OperatorError(
            f"operator {operator!r}: combine made field {name!r} of shape {list(np.shape(found))}, not {list(shape)}"
        )
    return found


def not_its_dtype(operator: str, name: str, got: Any, expected: Any) -> OperatorError:
    """The error for a field of a dtype that is not cast in silence."""
    return OperatorError(f"operator {operator!r}: combine made field {name!r} {got}, not {expected}; convert it there")
