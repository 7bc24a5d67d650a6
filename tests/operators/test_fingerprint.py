"""Fingerprints tell functions apart by what they do, not by where they stand."""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from topocomm.operators.fingerprint import closed_over, fingerprint, place_of

SCALE = 2.0
PROGRAM = """
from topocomm.operators.fingerprint import fingerprint
def rule(a, b):
    return a if b["kind"] in {"one", "two", "three", "four"} else b
print(fingerprint(rule, with_globals=False))
"""


def mark(function):
    return fingerprint(function, with_globals=True)


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

    assert mark(one) == mark(one) == mark(same)
    assert mark(one) != mark(other)
    assert mark(deeper(1)) != mark(deeper(2))
    assert mark(deeper((1, 2))) != mark(deeper((1, 3)))
    assert mark(deeper(np.arange(2))) != mark(deeper(np.arange(1, 3)))


def test_fingerprints_tell_intrinsics_apart():
    numba = pytest.importorskip("numba")
    extending = pytest.importorskip("numba.extending")

    def number(value):
        @extending.intrinsic
        def give(typingctx):
            return numba.types.int64(), lambda context, builder, signature, args: context.get_constant(
                numba.types.int64, value
            )

        return lambda: give()

    assert mark(number(1)) == mark(number(1)) != mark(number(2))


def test_a_fingerprint_knows_what_a_function_names(monkeypatch):
    before = mark(double)
    monkeypatch.setattr(sys.modules[__name__], "SCALE", 3.0)
    assert mark(double) != before


def test_a_fingerprint_ends_where_functions_name_each_other():
    def ping(n):
        return pong(n - 1) if n else 0

    def pong(n):
        return ping(n - 1) if n else 1

    assert mark(ping) != mark(pong)


def test_names_of_globals_count_and_their_values_where_asked_for(monkeypatch):
    before = fingerprint(double, with_globals=False)
    monkeypatch.setattr(sys.modules[__name__], "SCALE", 3.0)
    assert fingerprint(double, with_globals=False) == before


def test_a_fingerprint_is_the_same_in_another_file_and_process(tmp_path):
    found = set()
    for number in range(3):
        program = tmp_path / f"own{number}.py"
        program.write_text("\n" * number + PROGRAM)
        environment = {**os.environ, "PYTHONHASHSEED": str(number), "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, str(program)]
        found.add(
            subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, env=environment).stdout
        )
    assert len(found) == 1, found


def test_what_has_no_code_counts_by_name_and_state_does_not():
    def counting():
        calls = 0

        def rule(a, b):
            nonlocal calls
            calls += 1
            return a + b

        return rule

    rule, untried = counting(), counting()
    rule(1, 2)
    assert mark(rule) == mark(untried) and not closed_over(rule)
    assert mark(np.add) == mark(np.add) != mark(np.maximum)
    assert mark(partial(max, 1)) != mark(partial(max, 2)) and mark(partial(max, key=1)) != mark(partial(max, key=2))
    odd, even = object(), object()
    assert mark(lambda: odd) == mark(lambda: even)


def test_closed_over_values_are_told():
    factor, name, rows = 2, "x", np.arange(3)
    assert closed_over(lambda a: a[name] * factor + rows) == "factor = 2, name = 'x'"
    assert closed_over(np.add) == ""


def test_the_place_of_a_function_is_its_file_and_line(monkeypatch, tmp_path):
    def rule(a, b):
        return a

    line = rule.__code__.co_firstlineno
    monkeypatch.chdir(Path(__file__).parent)
    assert place_of(rule) == place_of(partial(rule, 1)) == f"test_fingerprint.py:{line}"
    monkeypatch.chdir(tmp_path)
    assert place_of(rule) == f"{__file__}:{line}"
    assert place_of(max) == ""
