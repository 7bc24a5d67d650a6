"""Uncaught exceptions are shown with their rank; those of several ranks once, and none is hidden."""

import logging
import re
import sys
import traceback
from threading import Barrier, current_thread

import numpy as np
import pytest

from topocomm import SUM, Field, MismatchError, Operator, OperatorError, PlanError, TopologyError, catalog, run_local
from topocomm.execute.liveness import exception_hook
from topocomm.execute.liveness.exception_hook import end_on_uncaught, tell_shown
from topocomm.execute.liveness.log import LOGGER
from topocomm.execute.transports.threads import World
from topocomm.planning.collectives import Collective


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


def shown_by_both(hook, capsys, errors, transports):
    """What ranks 0 and 1 show of errors that each raises by itself."""
    shown = []
    for rank in (0, 1):
        own = hook(rank)
        end_on_uncaught(rank, 2, tell_shown, lambda rank=rank: transports[rank])
        end_on_uncaught(rank, 2, tell_shown)  # of another communicator
        own(type(errors[rank]), errors[rank], errors[rank].__traceback__)
        shown.append(capsys.readouterr().err)
    return shown


def raised(word, note):
    with pytest.raises(TopologyError) as caught:
        catalog(word)
    caught.value.add_note(note)
    return caught.value


@pytest.mark.parametrize("words", [("dgx-h10", "dgx-h10"), ("dgx-h10", "dgx-h11")])
def test_a_wrong_argument_of_all_ranks_is_shown_once_if_it_is_the_same(hook, capsys, words):
    errors = [raised(word, f"record of rank {rank}") for rank, word in enumerate(words)]
    first, second = shown_by_both(hook, capsys, errors, World(2).transports())
    assert first.startswith("rank 0 of 2 failed:\n") and str(errors[0]) in first and "systems.py" not in first
    if words[0] == words[1]:
        assert second == f"rank 1 of 2 stopped too: TopologyError at {__file__}:{line_of(raised)}, in raised\n"
    else:
        assert second.startswith("rank 1 of 2 failed:\n") and str(errors[1]) in second


def test_an_error_of_a_dataclass_s_init_is_placed_at_the_users_line(hook, capsys):
    errors = []
    for _ in range(2):
        with pytest.raises(PlanError) as caught:
            Collective("reduce", 3, 7)  # its check runs in an __init__ that `dataclass` made, of file <string>
        errors.append(caught.value)
    _, second = shown_by_both(hook, capsys, errors, World(2).transports())
    here = f"{__file__}:{line_of(test_an_error_of_a_dataclass_s_init_is_placed_at_the_users_line) + 2}"
    assert second.startswith(f"rank 1 of 2 stopped too: PlanError at {here}, in test_an_error")


def test_a_wrong_argument_of_one_rank_alone_is_shown_by_it(hook, capsys):
    transports, error = World(2).transports(), raised("dgx-h10", "")
    own = hook(1)
    end_on_uncaught(1, 2, tell_shown, lambda: transports[1])
    own(type(error), error, error.__traceback__)
    assert capsys.readouterr().err.startswith("rank 1 of 2 failed:\n")


def missing(rank, name):
    """The error of a rank that finds no file of this name."""
    try:
        open(name.format(rank))  # noqa: SIM115
    except FileNotFoundError as error:
        return error


@pytest.mark.parametrize("name", ["/nowhere/data", "/nowhere/data{}"])
def test_an_exception_of_all_ranks_that_is_not_the_packages_is_shown_once_if_it_is_the_same(hook, capsys, name):
    first, second = shown_by_both(hook, capsys, [missing(rank, name) for rank in (0, 1)], World(2).transports())
    assert first.startswith("rank 0 of 2 failed:\n") and "FileNotFoundError: " in first
    if name.endswith("data"):
        assert second.startswith(f"rank 1 of 2 stopped too: FileNotFoundError at {__file__}:")
        assert second.count("\n") == 1
    else:
        assert second.startswith("rank 1 of 2 failed:\n") and "/nowhere/data1" in second


def test_what_the_user_interrupts_is_not_waited_for(hook, capsys, monkeypatch):
    monkeypatch.setattr(exception_hook, "_shown_elsewhere", lambda error: pytest.fail("waited"))
    own = hook(1)
    end_on_uncaught(1, 2, tell_shown, lambda: World(2).transports()[1])
    own(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert capsys.readouterr().err.startswith("rank 1 of 2 failed:\n")


def line_of(function):
    """Of the second line of its body."""
    return function.__code__.co_firstlineno + 2


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
    own = hook(0)
    end_on_uncaught(0, 2, tell_shown)
    own(kind, first, first.__traceback__)
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
