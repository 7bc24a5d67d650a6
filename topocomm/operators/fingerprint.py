"""Fingerprints of functions: by bytecode, so the same on all ranks that run one version of Python.

File names and line numbers do not enter: ranks may have a program in different folders.
"""

from __future__ import annotations

import dis
import hashlib
import os
from collections.abc import Iterator
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any

import numpy as np

DIGITS = 16
"""Hexadecimal digits of a fingerprint."""
MOST_WORDS = 60
"""Characters of closed-over values in a text."""
PLAIN = (bool, int, float, complex, str, bytes, type(None))


def fingerprint(function: Any, *, with_globals: bool) -> str:
    """Return the digest of a function: its code, defaults, and closed-over functions, numbers, strings and arrays.

    Of what has no code, a ufunc or an object, the name counts. Variables that the function itself assigns are state,
    and do not. `with_globals` adds the globals that it names, for what is compiled with their values.
    """
    digest = hashlib.sha256()
    for word in _words(function, set(), with_globals):
        digest.update(word.encode() + b"\0")
    return digest.hexdigest()[:DIGITS]


def place_of(function: Any) -> str:
    """Return file and line of a function, as `rise.py:7`; empty where it has no code of Python."""
    while isinstance(function, partial):
        function = function.func
    function = getattr(function, "py_func", function)
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    if code is None:
        return ""
    relative = os.path.relpath(code.co_filename)
    return f"{code.co_filename if relative.startswith(os.pardir) else relative}:{code.co_firstlineno}"


def closed_over(function: Any) -> str:
    """Return the numbers and strings that a function closes over, as `factor = 2, name = 'x'`, cut off."""
    values = [f"{name} = {value!r}" for name, value in _cells(function) if isinstance(value, (*PLAIN, np.generic))]
    return ", ".join(values)[:MOST_WORDS]


def _words(value: Any, visited: set[int], with_globals: bool) -> list[str]:
    value = getattr(value, "py_func", getattr(value, "_defn", value))  # of what numba has wrapped: @njit, @intrinsic
    if isinstance(value, MethodType):
        value = value.__func__
    parts: tuple[Any, ...] = ()
    words: list[str] = []
    if isinstance(value, FunctionType):
        if id(value) in visited:
            return [value.__name__]
        visited.add(id(value))
        words = _code(value.__code__)
        globals_ = value.__globals__ if with_globals else {}
        named = [globals_[name] for name in _names(value.__code__) if name in globals_]
        parts = (*(held for _, held in _cells(value)), *named, value.__defaults__, value.__kwdefaults__)
    elif isinstance(value, partial):
        words, parts = ["partial"], (value.func, value.args, value.keywords)
    elif isinstance(value, PLAIN):
        return [repr(value)]
    elif isinstance(value, tuple):
        words, parts = ["tuple"], value
    elif type(value) is dict:
        words, parts = ["dict"], tuple(part for item in value.items() for part in item)
    elif isinstance(value, (np.ndarray, np.generic)) and not value.dtype.hasobject:
        return [str(value.dtype), str(value.shape), hashlib.sha256(value.tobytes()).hexdigest()]
    else:
        return [getattr(value, "__qualname__", getattr(value, "__name__", type(value).__qualname__))]
    return words + [word for part in parts for word in _words(part, visited, with_globals)]


def _cells(function: Any) -> Iterator[tuple[str, Any]]:
    """Yield name and value of what a function closes over and never assigns."""
    if not isinstance(function, FunctionType) or function.__closure__ is None:
        return
    assigned = _assigned(function.__code__)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__, strict=True):
        try:
            held = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
        if name not in assigned:
            yield name, held


def _assigned(code: CodeType) -> set[str]:
    may_store = dis.opmap["STORE_DEREF"] in code.co_code[::2]  # reading all instructions takes 0.1 ms
    steps = dis.get_instructions(code) if may_store else ()
    stored = {step.argval for step in steps if step.opname == "STORE_DEREF"}
    return stored.union(*(_assigned(constant) for constant in code.co_consts if isinstance(constant, CodeType)))


def _code(code: CodeType) -> list[str]:
    words = [code.co_code.hex(), *code.co_names]
    for constant in code.co_consts:
        words += _code(constant) if isinstance(constant, CodeType) else [_constant(constant)]
    return words


def _constant(value: Any) -> str:
    if isinstance(value, frozenset):  # its order differs between processes
        return f"frozenset {sorted(map(_constant, value))}"
    return f"({', '.join(map(_constant, value))})" if isinstance(value, tuple) else repr(value)


def _names(code: CodeType) -> list[str]:
    nested = [name for constant in code.co_consts if isinstance(constant, CodeType) for name in _names(constant)]
    return [*code.co_names, *nested]
