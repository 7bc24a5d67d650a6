"""What compiled code asks of the interpreter and of NumPy, by their C interfaces. Objects and addresses are int64.

An object is borrowed unless it says that it is new. Only who holds the interpreter may call these functions, but for
`take_interpreter`.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

WORD, INT = ir.IntType(64), ir.IntType(32)
POINTER = ir.IntType(8).as_pointer()
NEW_FROM_DESCR = 94
"""Where NumPy's table of functions has PyArray_NewFromDescr: part of its binary interface since 1.0."""


def numpy_function(index: int) -> int:
    """The address of a function of NumPy's C interface."""
    core: Any = np._core  # type: ignore[attr-defined]
    name, capsule = ctypes.c_char_p(None), ctypes.py_object(core._multiarray_umath._ARRAY_API)
    take = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
        ("PyCapsule_GetPointer", ctypes.pythonapi)
    )
    table = ctypes.cast(take(capsule, name), ctypes.POINTER(ctypes.c_int64))
    return int(table[index])


def _declared(builder, name: str, result, given):
    return cgutils.get_or_insert_function(builder.module, ir.FunctionType(result, given), name)


def _pointers(builder, words):
    return [builder.inttoptr(word, POINTER) for word in words]


def _as_word(builder, result):
    return builder.ptrtoint(result, WORD)


@intrinsic
def let_interpreter_go(typingctx):
    """PyEval_SaveThread: other threads may run Python. What to hand to `take_interpreter`."""

    def codegen(context, builder, signature, args):
        return _as_word(builder, builder.call(_declared(builder, "PyEval_SaveThread", POINTER, []), []))

    return types.int64(), codegen


def _taking(name: str):
    """A C function that takes an object and gives nothing."""

    def codegen(context, builder, signature, args):
        builder.call(_declared(builder, name, ir.VoidType(), [POINTER]), _pointers(builder, args))
        return context.get_dummy_value()

    return types.void(types.int64), codegen


def _making(name: str):
    """A C function that makes an object of a number."""

    def codegen(context, builder, signature, args):
        return _as_word(builder, builder.call(_declared(builder, name, POINTER, [WORD]), args))

    return types.int64(types.int64), codegen


@intrinsic
def take_interpreter(typingctx, thread):
    """PyEval_RestoreThread."""
    return _taking("PyEval_RestoreThread")


@intrinsic
def hold(typingctx, thing):
    """Py_IncRef; nothing where it is 0."""
    return _taking("Py_IncRef")


@intrinsic
def release(typingctx, thing):
    """Py_DecRef; nothing where it is 0."""
    return _taking("Py_DecRef")


@intrinsic
def new_int(typingctx, number):
    """A new Python int; 0 where memory is out, the error set."""
    return _making("PyLong_FromLongLong")


@intrinsic
def new_tuple(typingctx, size):
    """A new tuple, its places to be filled by `fill`; 0 where memory is out, the error set."""
    return _making("PyTuple_New")


@intrinsic
def fill(typingctx, record, place, thing):
    """Put an object that is held in a place of a new tuple, whose it becomes."""

    def codegen(context, builder, signature, args):
        function = _declared(builder, "PyTuple_SetItem", INT, [POINTER, WORD, POINTER])
        record, thing = _pointers(builder, [args[0], args[2]])
        builder.call(function, [record, args[1], thing])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


@intrinsic
def next_item(typingctx, mapping, at):
    """PyDict_Next: whether the dict has another item; its cursor, key and value are the three words at `at`."""

    def codegen(context, builder, signature, args):
        function = _declared(builder, "PyDict_Next", INT, [POINTER] * 4)
        places = [builder.add(args[1], ir.Constant(WORD, 8 * index)) for index in range(3)]
        found = builder.call(function, _pointers(builder, [args[0], *places]))
        return builder.icmp_signed("!=", found, ir.Constant(INT, 0))

    return types.boolean(types.int64, types.int64), codegen


@intrinsic
def same_text(typingctx, one, other):
    """Whether two str are equal."""

    def codegen(context, builder, signature, args):
        function = _declared(builder, "PyUnicode_Compare", INT, [POINTER] * 2)
        found = builder.call(function, _pointers(builder, args))
        return builder.icmp_signed("==", found, ir.Constant(INT, 0))

    return types.boolean(types.int64, types.int64), codegen


@intrinsic
def new_dict(typingctx):
    """A new empty dict; 0 where memory is out, the error set."""

    def codegen(context, builder, signature, args):
        return _as_word(builder, builder.call(_declared(builder, "PyDict_New", POINTER, []), []))

    return types.int64(), codegen


@intrinsic
def put_item(typingctx, mapping, key, value):
    """Whether the dict now has the value at the key; False where memory is out, the error set."""

    def codegen(context, builder, signature, args):
        function = _declared(builder, "PyDict_SetItem", INT, [POINTER] * 3)
        return builder.icmp_signed("==", builder.call(function, _pointers(builder, args)), ir.Constant(INT, 0))

    return types.boolean(types.int64, types.int64, types.int64), codegen


@intrinsic
def new_array(typingctx, function, array_type, dtype, axes, sizes):
    """A new C-contiguous array without contents; 0 where memory is out, the error set.

    The function is `numpy_function(NEW_FROM_DESCR)`, and sizes the address of the array's, one an axis.
    """

    def codegen(context, builder, signature, args):
        address, *words, axes, sizes = args
        kind = ir.FunctionType(POINTER, [POINTER, POINTER, INT, POINTER, POINTER, POINTER, INT, POINTER])
        array_type, dtype = _pointers(builder, words)
        builder.call(_declared(builder, "Py_IncRef", ir.VoidType(), [POINTER]), [dtype])  # the function takes one
        given = [array_type, dtype, builder.trunc(axes, INT), *_pointers(builder, [sizes])]
        none, no_flags = ir.Constant(POINTER, None), ir.Constant(INT, 0)
        function = builder.inttoptr(address, kind.as_pointer())
        return _as_word(builder, builder.call(function, [*given, none, none, no_flags, none]))

    return types.int64(*[types.int64] * 5), codegen
