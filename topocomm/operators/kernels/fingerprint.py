"""Fingerprints of Python functions: those that differ in code or constants have different ones."""

from __future__ import annotations

import hashlib
from types import CodeType, FunctionType
from typing import Any

DIGITS = 16
"""Hexadecimal digits of a fingerprint."""


def fingerprint(function: Any) -> str:
    """Return the digest of a function's code and of the functions and constants that it names.

    Source: bytecode, so it is the same on all ranks that run one version of Python.
    """
    digest = hashlib.sha256()
    for word in _words(function, set()):
        digest.update(word.encode() + b"\0")
    return digest.hexdigest()[:DIGITS]


def _words(value: Any, visited: set[int]) -> list[str]:
    value = getattr(value, "py_func", getattr(value, "_defn", value))  # of what numba has wrapped: @njit, @intrinsic
    if isinstance(value, FunctionType):
        if id(value) in visited:
            return [value.__name__]
        visited.add(id(value))
        closure = [cell.cell_contents for cell in value.__closure__ or ()]
        named = [value.__globals__[name] for name in _names(value.__code__) if name in value.__globals__]
        return _code(value.__code__) + [
            word for part in (*closure, *named, value.__defaults__) for word in _words(part, visited)
        ]
    if isinstance(value, (bool, int, float, complex, str, bytes, type(None))):
        return [repr(value)]
    if isinstance(value, tuple):
        return ["tuple", *(word for item in value for word in _words(item, visited))]
    if hasattr(value, "tobytes") and hasattr(value, "dtype"):
        return [str(value.dtype), hashlib.sha256(value.tobytes()).hexdigest()]
    return [getattr(value, "__name__", type(value).__name__)]


def _code(code: CodeType) -> list[str]:
    words = [code.co_code.hex(), *code.co_names]
    for constant in code.co_consts:
        words += _code(constant) if isinstance(constant, CodeType) else [repr(constant)]
    return words


def _names(code: CodeType) -> list[str]:
    nested = [name for constant in code.co_consts if isinstance(constant, CodeType) for name in _names(constant)]
    return [*code.co_names, *nested]
