"""What packages bring to measure their operators beside: the entry-point group `topocomm.bench`.

An entry point has an operator's name and leads to a module with

    alternatives(library) -> list of methods   `topocomm.bench.method` says what a library and a method is
    exact(values) -> fields                    the reduction of widened values by formula, in float64; optional
    draw(rng, layout) -> fields                a value to measure with, in place of the operator's `sample`; optional

so that the package needs to import nothing of topocomm.
"""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import entry_points
from typing import Any

from topocomm.bench.method import Library, Method
from topocomm.bench.result_check import Exact
from topocomm.errors import OperatorError
from topocomm.operators.operator import Operator

GROUP = "topocomm.bench"


def find_module(operator: str) -> Any:
    """The module registered for an operator, or None.

    Raises:
        OperatorError: It cannot be loaded.
    """
    for entry in entry_points(group=GROUP):
        if entry.name == operator:
            try:
                return entry.load()
            except (ImportError, AttributeError) as error:
                raise OperatorError(f"operator {operator!r}: cannot load its {GROUP} {entry.value}: {error}") from None
    return None


def registered_methods(module: Any, library: Library) -> list[Method]:
    """The methods of a registered module; none without one."""
    return [] if module is None else list(module.alternatives(library))


def with_values(operator: Operator, module: Any) -> Operator:
    """The operator with the values that a registered module draws for it, if it does."""
    draw = getattr(module, "draw", None)
    return operator if draw is None else replace(operator, sample=draw)


def registered_exact(module: Any) -> Exact | None:
    """The formula of a registered module, if it has one."""
    return getattr(module, "exact", None)
