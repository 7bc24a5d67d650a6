"""Fingerprints of Python functions."""

import sys

import numpy as np
from numba import types
from numba.extending import intrinsic

from topocomm.operators.kernels.fingerprint import fingerprint

SCALE = 2.0


def double(x):
    return x * SCALE


def test_fingerprints_tell_functions_apart():
    def one(a, b):
        return a + double(b)

    def same(a, b):
        return a + double(b)

    def other(a, b):
        return a - double(b)

    def deeper(factor):
        return lambda a: a * factor

    assert fingerprint(one) == fingerprint(one) == fingerprint(same)
    assert fingerprint(one) != fingerprint(other)
    assert fingerprint(deeper(1)) != fingerprint(deeper(2))
    assert fingerprint(deeper((1, 2))) != fingerprint(deeper((1, 3)))
    assert fingerprint(deeper(np.arange(2))) != fingerprint(deeper(np.arange(1, 3)))


def test_fingerprints_tell_intrinsics_apart():
    def number(value):
        @intrinsic
        def give(typingctx):
            return types.int64(), lambda context, builder, signature, args: context.get_constant(types.int64, value)

        return lambda: give()

    assert fingerprint(number(1)) == fingerprint(number(1)) != fingerprint(number(2))


def test_a_fingerprint_knows_what_a_function_names(monkeypatch):
    before = fingerprint(double)
    monkeypatch.setattr(sys.modules[__name__], "SCALE", 3.0)
    assert fingerprint(double) != before


def test_a_fingerprint_ends_where_functions_name_each_other():
    def ping(n):
        return pong(n - 1) if n else 0

    def pong(n):
        return ping(n - 1) if n else 1

    assert fingerprint(ping) != fingerprint(pong)
