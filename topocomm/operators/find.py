"""Operators by name, through the entry-point group `topocomm.operators`, so that any package can bring its own.

An entry is an operator, or a function from a whole number to one: "topk(8)" is what `topk` gives for 8.
"""

from __future__ import annotations

import re
from contextlib import suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING

from topocomm.command_parser import respelled
from topocomm.errors import OperatorError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from topocomm.operators.operator import Operator

GROUP = "topocomm.operators"


def find_operator(name: str) -> Operator:
    """Return the operator that an installed package registers under `name`, in any spelling of it (`respelled`).

    Raises:
        OperatorError: Nobody registers the name, or what is registered cannot be loaded.
    """
    from topocomm.operators.operator import Operator

    entry, number = registered_entry(name)
    stem = entry.name
    try:
        operator = entry.load()
    except (ImportError, AttributeError) as error:
        raise OperatorError(f"operator {name!r}: cannot load {entry.value}: {error}{_shadow(entry)}") from None
    if callable(operator) and number is not None:
        operator = operator(number)
    elif callable(operator):
        raise OperatorError(f"operator {name!r} takes a number: {name}(8)")
    elif number is not None:
        raise OperatorError(f"operator {stem!r} takes no number, got {name!r}")
    if not isinstance(operator, Operator):
        raise OperatorError(f"operator {name!r}: {entry.value} is a {type(operator).__name__}, not an Operator")
    return operator


def registered_entry(name: str) -> tuple[EntryPoint, int | None]:
    """Return the entry of an operator's name, and the number in its brackets; nothing is imported.

    Raises:
        OperatorError: Nobody registers the name.
    """
    from importlib.metadata import entry_points

    entries = {entry.name: entry for entry in entry_points(group=GROUP)}
    match = re.fullmatch(r"(.+)\((\d+)\)", name)
    stem, number = (match[1], int(match[2])) if match else (name, None)
    stem = respelled(stem, entries) or stem
    if stem not in entries:
        raise OperatorError(f"unknown operator {name!r}; installed packages register {', '.join(sorted(entries))}")
    return entries[stem], number


def _shadow(entry: EntryPoint) -> str:
    """What to do if Python finds the entry's package but not its module: another package hides the right one."""
    package = entry.module.partition(".")[0]
    spec = find_spec(package)
    if entry.dist is None or spec is None:
        return ""
    with suppress(ModuleNotFoundError):  # the parent is no package
        if find_spec(entry.module) is not None:
            return ""
    return (
        f"; {spec.origin} is not the {package!r} of {entry.dist.name}, it shadows it: "
        f"pip uninstall {package}, or leave the directory that holds it, and reinstall {entry.dist.name}"
    )
