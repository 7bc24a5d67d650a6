"""Operators by name, through the entry-point group `topocomm.operators`, so that any package can bring its own."""

from __future__ import annotations

from importlib.metadata import entry_points

from topocomm.errors import OperatorError
from topocomm.operators.operator import Operator

GROUP = "topocomm.operators"


def find_operator(name: str) -> Operator:
    """The operator that an installed package registers under `name`.

    Raises:
        OperatorError: Nobody registers the name, or what is registered cannot be loaded.
    """
    found = {entry.name: entry for entry in entry_points(group=GROUP)}
    if name not in found:
        raise OperatorError(f"unknown operator {name!r}; installed packages register {', '.join(sorted(found))}")
    try:
        operator = found[name].load()
    except (ImportError, AttributeError) as error:
        raise OperatorError(f"operator {name!r}: cannot load {found[name].value}: {error}") from None
    if not isinstance(operator, Operator):
        raise OperatorError(f"operator {name!r}: {found[name].value} is a {type(operator).__name__}, not an Operator")
    return operator
