"""Uncaught exceptions are shown with their rank; those of several ranks once, and none is hidden."""

import logging
import re
import sys
import traceback
from threading import Barrier, current_thread

import numpy as np
import pytest

from topocomm import SUM, Field, MismatchError, Operator, OperatorError, run_local
from topocomm.execute.liveness.exception_hook import end_on_uncaught, tell_shown
from topocomm.execute.liveness.log import LOGGER


@pytest.fixture
def hook(monkeypatch):
    """Makes the hook of a rank of 2, on top of Python's own."""
    plain = lambda kind, error, trace: sys.stderr.write("".join(traceback.format_exception(kind, error, trace)))  # noqa: E731

    def make(rank):
        monkeypatch.setattr(sys, "excepthook", plain)
        end_on_uncaught(rank, 2, tell_shown)
        return sys.excepthook

    return make


def test_an_uncaught_exception_is_shown_with_its_rank_before_the_others_are_told(monkeypatch, capsys):
    told = []
    monkeypatch.setattr(sys, "excepthook", lambda kind, error, trace: told.append("traceback"))
    first, second = (lambda error, name=name: told.append((name, error)) for name in ("first", "second"))
    end_on_uncaught(1, 3, first)
    end_on_uncaught(0, 2, second)  # of another communicator
    end_on_uncaught(1, 3, first)
    error = ValueError("planted")
    sys.excepthook(ValueError, error, None)
    assert told == ["traceback", ("first", error), ("second", error)]
    assert capsys.readouterr().err == "rank 1 of 3 failed:\n"


def raised_by_both(values, operator=SUM):
    """What each of two ranks raises in an allreduce of its value."""
    errors, both = [None, None], Barrier(2)

    def body(comm):
        try:
            comm.allreduce(values[comm.rank], operator)
        except Exception as error:  # noqa: BLE001
            errors[comm.rank] = error
        both.wait()  # a thread that ends is a rank that is gone

    run_local(body, ranks=2)
    return errors


@pytest.mark.parametrize(
    ("values", "kind"),
    [((np.ones(3), np.ones(4)), MismatchError), (([1], [1]), OperatorError), ((np.ones(3), [1]), MismatchError)],
)
def test_an_error_of_all_ranks_is_shown_by_the_first_and_located_by_the_others(hook, capsys, values, kind):
    first, second = raised_by_both(values)
    hook(0)(type(first), first, first.__traceback__)
    shown = capsys.readouterr().err
    assert shown.startswith("rank 0 of 2 failed:\n") and str(first) in shown and __file__ in shown
    assert "call_cache.py" not in shown and "another exception" not in shown
    hook(1)(type(second), second, second.__traceback__)
    line = capsys.readouterr().err
    assert line.startswith(f"rank 1 of 2 stopped too: {kind.__name__} at {__file__}:") and line.count("\n") == 1


def test_without_word_of_the_first_rank_the_others_show_the_error_too(hook, capsys):
    _, second = raised_by_both((np.ones(3), np.ones(4)))
    hook(1)(type(second), second, second.__traceback__)
    assert capsys.readouterr().err.startswith("rank 1 of 2 failed:\nTraceback")


@pytest.mark.parametrize("how", ["context", "cause", "debug"])
def test_nothing_is_hidden_that_the_first_rank_may_not_have(hook, capsys, how):
    first, second = raised_by_both((np.ones(3), np.ones(4)))
    tell_shown(first)
    if how == "debug":
        LOGGER.setLevel(logging.DEBUG)
    else:
        setattr(second, f"__{how}__", KeyError("planted"))
    try:
        hook(1)(type(second), second, second.__traceback__)
    finally:
        LOGGER.setLevel(logging.NOTSET)
    shown = capsys.readouterr().err
    assert str(second) in shown and "call_cache.py" in shown and ("planted" in shown or how == "debug")


def lacking(a, b):
    return {"x": a["x"] + b["y"]}


def in_place(a, b):
    a["x"] += b["x"]
    return a


def nameless(a, b):
    return {}


@pytest.mark.parametrize(("rule", "kind"), [(lacking, KeyError), (in_place, OperatorError), (nameless, OperatorError)])
def test_a_fault_of_a_rule_is_shown_once_with_frames_of_the_users_alone(hook, capsys, rule, kind):
    first, second = raised_by_both([np.ones(3)] * 2, Operator("own", (Field("x"),), rule, 0))
    hook(0)(kind, first, first.__traceback__)
    shown = capsys.readouterr().err
    assert shown.startswith("rank 0 of 2 failed:\n") and "in raised_by_both" not in shown
    assert (", in lacking" in shown or ", in in_place" in shown) == (rule is not nameless)
    files = set(re.findall(r'File "(.*)", line', shown))
    assert files == {__file__}, shown
    hook(1)(kind, second, second.__traceback__)
    line = capsys.readouterr().err
    assert line.startswith(f"rank 1 of 2 stopped too: {kind.__name__} at {__file__}:") and line.count("\n") == 1


def test_a_fault_of_one_rank_that_another_only_hears_of_is_shown_by_it(hook, capsys):
    def odd(a, b):
        raise ValueError(f"here, by {current_thread().name}")

    first, second = raised_by_both([np.ones(3)] * 2, Operator("own", (Field("x"),), odd, 0))
    hook(1)(ValueError, second, second.__traceback__)  # in other words than rank 0
    shown = capsys.readouterr().err
    assert str(first) != str(second) and shown.startswith("rank 1 of 2 failed:\nTraceback") and str(second) in shown


def test_a_fault_inside_the_library_keeps_its_frames(hook, capsys):
    try:
        _ = SUM.layout({"value": None})
    except TypeError as error:
        hook(0)(TypeError, error, error.__traceback__)
    assert "operator.py" in capsys.readouterr().err
