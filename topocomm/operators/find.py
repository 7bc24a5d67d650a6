"""Operators by name: registered through the entry-point group `topocomm.operators`, or of a user's file or module.

An entry, or what a file or module names, is an operator, or a function from a whole number to one: "topk(8)" is what
`topk` gives for 8.
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from contextlib import suppress
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from traceback import walk_tb
from typing import TYPE_CHECKING, Any, NamedTuple

from topocomm.command_parser import respelled
from topocomm.errors import OperatorError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint
    from types import ModuleType

    from topocomm.operators.operator import Operator

GROUP = "topocomm.operators"
OWN = "FILE.py:NAME or package.module:NAME"
"""How an operator is named that no package registers."""


class _Place(NamedTuple):
    """Where an operator lies: in a file, or in a module that Python finds, and there by which name."""

    source: str
    name: str

    @property
    def is_file(self) -> bool:
        return self.source.endswith(".py") or os.sep in self.source


def find_operator(name: str) -> Operator:
    """Return the operator that an installed package registers under `name`, in any spelling of it (`respelled`).

    With a colon it is one of the user's own: `FILE.py:NAME` or `package.module:NAME`, loaded once. As `python FILE.py`
    does, the file may import what lies beside it; of a module the working directory may be the place.

    Raises:
        OperatorError: Nobody registers the name, or what is registered cannot be loaded.
    """
    place, number = check_operator_name(name)
    if isinstance(place, _Place):
        return _made(_own(place), number, name, f"{place.name} of {place.source}")
    try:
        found = place.load()
    except (ImportError, AttributeError) as error:
        raise OperatorError(f"operator {name!r}: cannot load {place.value}: {error}{_shadow(place)}") from None
    return _made(found, number, name, place.value)


def _made(found: Any, number: int | None, name: str, where: str) -> Operator:
    """Return the operator that was found, or that the function found makes for a number."""
    from topocomm.operators.operator import Operator

    if isinstance(found, Operator):
        if number is not None:
            raise OperatorError(f"operator {name.rpartition('(')[0]!r} takes no number, got {name!r}")
        return found
    if callable(found) and number is None:
        raise OperatorError(f"operator {name!r} takes a number: {name}(8)")
    operator = found(number) if callable(found) else found
    if not isinstance(operator, Operator):
        raise OperatorError(f"operator {name!r}: {where} is a {type(operator).__name__}, not an Operator")
    return operator


def check_operator_name(name: str) -> tuple[EntryPoint | _Place, int | None]:
    """Return where the operator of a name is, and the number in its brackets; nothing is imported.

    Raises:
        OperatorError: Nobody registers the name, or there is no such file.
    """
    match = re.fullmatch(r"(.+)\((\d+)\)", name)
    stem, number = (match[1], int(match[2])) if match else (name, None)
    source, colon, attribute = stem.rpartition(":")
    if not colon and not stem.endswith(".py"):
        return _registered(stem, name), number
    if not source or not attribute.isidentifier():
        raise OperatorError(f"operator {name!r}: expected {OWN}, the name of an Operator in it")
    place = _Place(source, attribute)
    if place.is_file and not os.path.isfile(source):
        raise OperatorError(f"operator {name!r}: no file {source}; expected {OWN}")
    return place, number


def _registered(stem: str, name: str) -> EntryPoint:
    """Return the entry of a name; topocomm's own where another package registers the same."""
    from importlib.metadata import entry_points

    entries: dict[str, dict[str, EntryPoint]] = {}
    for entry in entry_points(group=GROUP):
        entries.setdefault(entry.name, {})[entry.dist.name if entry.dist else ""] = entry
    by_package = entries.get(respelled(stem, entries) or stem)
    if by_package is None:
        raise OperatorError(
            f"unknown operator {name!r}; installed packages register {', '.join(sorted(entries))}; or give {OWN}"
        )
    if len(by_package) == 1:
        return next(iter(by_package.values()))
    own = by_package.pop("topocomm", None)
    others = ", ".join(sorted(by_package))
    if own is None:
        values = " or ".join(entry.value for _, entry in sorted(by_package.items()))
        raise OperatorError(f"operator {name!r} is registered by several packages, {others}; say which: {values}")
    warnings.warn(
        f"operator {stem!r} is topocomm's own; package {others} registers that name, too, for "
        f"{', '.join(entry.value for entry in by_package.values())}: name it so",
        stacklevel=4,
    )
    return own


@lru_cache
def _own(place: _Place) -> Any:
    """Return what a place holds."""
    folder = os.path.dirname(os.path.abspath(place.source)) if place.is_file else os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        module = _run_file(place.source) if place.is_file else import_module(place.source)
    except (Exception, SystemExit) as error:  # whatever the user's file raises
        raise OperatorError(f"{place.source}: cannot be loaded: {_why(error, place.source)}") from error
    if hasattr(module, place.name):
        return getattr(module, place.name)
    from topocomm.operators.operator import Operator

    names = [name for name, held in vars(module).items() if isinstance(held, Operator) and not name.startswith("_")]
    known = f"its operators are {', '.join(names)}" if names else "there is no Operator in it"
    raise OperatorError(f"{place.source}: nothing is named {place.name!r} in it; {known}")


def _run_file(path: str) -> ModuleType:
    path = os.path.abspath(path)
    spec = spec_from_file_location(path, path)
    if spec is None or spec.loader is None:
        raise ImportError("expected a file of Python that ends with .py")
    module = sys.modules[path] = module_from_spec(spec)  # by its path no other module is hidden
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[path]
        raise
    return module


def _why(error: BaseException, source: str) -> str:
    """Return what a file raised as it was loaded, with the line."""
    if isinstance(error, SystemExit):
        return 'it exits; put what it runs as a program under `if __name__ == "__main__":`'
    lines = [number for frame, number in walk_tb(error.__traceback__) if _is_code_of(frame.f_code.co_filename, source)]
    where = f" (line {lines[-1]})" if lines else ""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}{where}"


def _is_code_of(filename: str, source: str) -> bool:
    return filename in (os.path.abspath(source), source)


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
