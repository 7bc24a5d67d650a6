"""Requests that an engine starts and tests, of functions in the place of MPI's."""

import ctypes
from array import array

import numpy as np
import pytest

from tests.native.test_engine import SECTIONS, Memory, arrays, kinds, program, words_of
from topocomm import TopocommError
from topocomm.native import _native
from topocomm.native._native import FINISHED, STRIDE, THROUGH, TO_EXCHANGE, WAITING

START = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p)
TEST = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int), ctypes.c_void_p)
COUNT, HANDLE_BYTES, STATUS_BYTES = 3, 8, 24


class Library:
    """Requests that are through after so many tests; what it was called with."""

    def __init__(self, tests_until_through, *, start_code=0, test_code=0):
        self.calls, self.left, self.arrived = [], 0, lambda: None

        def start_all(count, handles):
            self.calls.append(("start", count, ctypes.string_at(handles, count * HANDLE_BYTES)))
            self.left = tests_until_through
            return start_code

        def test_all(count, handles, flag, statuses):
            ctypes.memset(statuses, 7, count * STATUS_BYTES)
            self.calls.append(("test", count, ctypes.string_at(handles, count * HANDLE_BYTES)))
            self.left -= 1
            flag[0] = self.left <= 0
            if flag[0]:
                self.arrived()
            return test_code

        self.functions = START(start_all), TEST(test_all)
        self.handles, self.statuses = bytearray(range(COUNT * HANDLE_BYTES)), bytearray(COUNT * STATUS_BYTES)

    @property
    def names(self):
        return [name for name, _, _ in self.calls]

    def requests(self, **changes):
        start_all, test_all = (ctypes.cast(function, ctypes.c_void_p).value for function in self.functions)
        settings = {
            "start_all": start_all,
            "test_all": test_all,
            "handles": self.handles,
            "statuses": self.statuses,
            "count": COUNT,
            "tests": 4,
        }
        return _native.Requests(**{**settings, **changes})


def with_messages(rank=0):
    """A program whose stage has messages beside the other rank's counter."""
    return {**program(rank), "CREDITS": [], "STAGES": [(1, 1, 1, 1, 0, 1)]}


def test_an_engine_starts_its_requests_once_and_folds_when_they_are_through():
    memory, library = Memory(), Library(3)
    memory.counters[8] = STRIDE + 1
    value, result = arrays(0)
    library.arrived = lambda: memory.memory[64:96].view(np.float64).fill(5.0)
    engine = memory.engine(words=words_of(with_messages()), requests=(library.requests(),))
    assert engine.begin(value, result, True) == engine.state == TO_EXCHANGE
    assert memory.counters[0] == STRIDE + 1, "others do not wait for this rank's messages"
    assert (engine.stage, engine.behind()) == (0, [])
    assert engine.go_on() == TO_EXCHANGE
    assert engine.go_on() == THROUGH
    assert library.names == ["start", "test", "test", "test"]
    assert {call[1:] for call in library.calls} == {(COUNT, bytes(range(COUNT * HANDLE_BYTES)))}
    assert set(library.statuses) == {7}
    np.testing.assert_array_equal(result[0], value[0] + 5.0)
    memory.assert_guarded()


def test_a_wait_tests_as_often_as_it_may_and_then_by_the_clock():
    library, memory = Library(6), Memory()
    memory.counters[8] = STRIDE + 1
    engine = memory.engine(words=words_of(with_messages()), requests=(library.requests(),))
    assert engine.begin(*arrays(0), True) == TO_EXCHANGE  # once
    assert engine.go_on(10**6) == THROUGH
    assert library.names.count("test") == 6


def test_messages_that_are_through_are_not_sent_again_while_others_are_awaited():
    memory, library = Memory(), Library(1)
    engine = memory.engine(words=words_of(with_messages()), requests=(library.requests(),))
    assert engine.begin(*arrays(0), True) == WAITING
    assert engine.behind() == [1] and engine.go_on() == WAITING
    memory.counters[8] = STRIDE + 1
    assert engine.go_on() == THROUGH
    assert library.names == ["start", "test"]
    memory.counters[8] = 2 * STRIDE + 1
    assert engine.begin(*arrays(0), True) == THROUGH
    assert library.names == ["start", "test"] * 2


def test_messages_without_requests_are_left_to_the_caller():
    memory = Memory()
    memory.counters[8] = STRIDE + 1
    engine = memory.engine(words=words_of(with_messages()))
    for _ in range(2):
        value, result = arrays(0)
        assert engine.begin(value, result, True) == engine.state == TO_EXCHANGE
        memory.memory[64:96].view(np.float64)[...] = 3.0
        assert engine.go_on() == THROUGH
        np.testing.assert_array_equal(result[0], value[0] + 3.0)
        memory.counters[8] += STRIDE


@pytest.mark.parametrize(("where", "calls"), [("start_code", ["start"]), ("test_code", ["start", "test"])])
def test_an_error_of_the_library_is_kept_and_the_call_does_not_go_on(where, calls):
    memory, library = Memory(), Library(1, **{where: 75})
    memory.counters[8] = STRIDE + 1
    requests = library.requests()
    engine = memory.engine(words=words_of(with_messages()), requests=(requests,))
    assert requests.code == 0
    value, result = arrays(0)
    assert engine.begin(value, result, True) == TO_EXCHANGE
    assert requests.code == 75 and library.names == calls
    assert np.isnan(result[0]).all()


@pytest.mark.parametrize(
    "changes",
    [
        {"start_all": 0},
        {"test_all": 0},
        {"count": 0},
        {"count": -1},
        {"count": 5},
        {"count": 1 << 40},
        {"tests": 0},
        {"handles": bytearray()},
        {"statuses": bytearray(COUNT + 1)},
    ],
    ids=str,
)
def test_requests_that_do_not_fit_are_refused(changes):
    with pytest.raises(TopocommError, match="requests take two functions"):
        Library(1).requests(**changes)


@pytest.mark.parametrize("given", [(), (None, None), (Library(1).requests(),), (3,)], ids=["none", "two", "no", "3"])
def test_requests_are_those_of_stages_with_messages(given):
    words = words_of(program(0)) if given != (3,) else words_of(with_messages())
    with pytest.raises(TopocommError, match="requests for each stage that has messages"):
        Memory().engine(words=words, requests=given)


def test_a_program_without_arrays_can_have_messages():
    memory, library = Memory(), Library(1)
    sections = {**dict.fromkeys(SECTIONS, ()), "STAGES": [(1, 0, 0, 0, 0, 1)]}
    settings = {"value": kinds(fields=0), "result": kinds(fields=0), "fold": 0, "epoch": array("q", [1])}
    engine = memory.engine(words=words_of(sections), requests=(library.requests(),), **settings)
    engine.start()
    assert engine.go_on() == THROUGH
    assert library.names == ["start", "test"]


def test_a_call_takes_credits_of_the_call_before_the_last_and_gives_its_own():
    """By turn: the requests of receivers' words, started when a call begins, and those of this rank's, when it ends."""
    libraries = [Library(1) for _ in range(4)]
    coming, going, coming2, going2 = libraries
    memory = Memory()
    engine = memory.engine(
        words=words_of({**program(0), "CREDITS": []}), credits=tuple([library.requests() for library in libraries])
    )
    expected = [
        (["start"], ["start"], [], []),
        (["start"], ["start"], ["start"], ["start"]),
        (["start", "test", "start"], ["start", "test", "start"], ["start"], ["start"]),
    ]
    for call, names in enumerate(expected, 1):
        memory.counters[8] = call * STRIDE + 1
        assert engine.begin(*arrays(0), True) == THROUGH
        assert engine.credited == call
        assert tuple(library.names for library in (coming, going, coming2, going2)) == names
    coming2.left = 3  # the receivers are behind
    assert engine.begin(*arrays(0), True) == TO_EXCHANGE
    assert (engine.stage, engine.credited, engine.behind()) == (-1, 3, [])
    assert memory.counters[0] == 3 * STRIDE + FINISHED, "the value is not written, nothing is published"
    memory.counters[8] = 4 * STRIDE + 1
    assert engine.go_on(10**6) == THROUGH and engine.credited == 4
    assert coming2.names == ["start", "test", "test", "test", "start"]


def test_an_error_of_credits_is_kept():
    library, memory = Library(1, test_code=75), Memory()
    requests = library.requests()
    engine = memory.engine(words=words_of({**program(0), "CREDITS": []}), credits=(requests, None) * 2)
    for call in (1, 2):
        memory.counters[8] = call * STRIDE + 1
        assert engine.begin(*arrays(0), True) == THROUGH
    assert engine.begin(*arrays(0), True) == TO_EXCHANGE
    assert (requests.code, engine.stage, engine.credited) == (75, -1, 2)


@pytest.mark.parametrize("given", [(None,), (None,) * 3, (None, None, None, 3)], ids=["one", "three", "a number"])
def test_credits_are_those_of_two_turns(given):
    with pytest.raises(TopocommError, match="credits, or None, by turn and direction"):
        Memory().engine(credits=given)
