"""The run of an engine in C, with an engine in its place that goes through given states."""

from types import SimpleNamespace

import pytest

from topocomm.execute.host.compiled_run import CompiledRun
from topocomm.execute.transports.transport import Message
from topocomm.native._native import THROUGH, TO_EXCHANGE, TO_FOLD, WAITING


class Engine:
    """Stands in (state, stage) one after the other."""

    credited = 0

    def __init__(self, *states):
        self.states, self.slept = list(states), []

    @property
    def state(self):
        return self.states[0][0]

    @property
    def stage(self):
        return self.states[0][1]

    def go_on(self, sleep_us=0):
        self.slept.append(sleep_us)
        if len(self.states) > 1:
            self.states.pop(0)
        return self.state

    def behind(self):
        return [1, 1]


class Messages:
    """Messages with rank 9, through at the given look."""

    def __init__(self, looks=1, error=None):
        self.looks, self.error, self.did = looks, error, []

    def start(self):
        self.did.append("start")

    def wait(self, timeout_s):
        self.did.append("wait")
        self.looks -= 1
        return self.looks <= 0

    def check(self):
        self.did.append("check")
        if self.error:
            raise self.error

    def pending(self):
        return [], [Message(9, ((0, 4),))]

    def free(self):
        self.did.append("free")


SHARED = SimpleNamespace(ranks=(4, 7))


def run_of(engine, **parts):
    return CompiledRun(SHARED, engine, {(2, 1): 16}, **parts)


def test_folds_and_messages_outside_are_done_where_the_engine_stands():
    folded, messages = [], Messages()
    engine = Engine((TO_FOLD, 0), (TO_EXCHANGE, 1), (TO_FOLD, 1), (THROUGH, -1))
    run = run_of(engine, outside=SimpleNamespace(run=folded.append), exchanges={1: messages}, from_python={1})
    assert run.follow(engine.state)
    assert folded == [0, 1] and messages.did == ["start", "wait"]


def test_messages_outside_are_started_once_and_named_while_they_are_awaited():
    messages = Messages(looks=3)
    engine = Engine((TO_EXCHANGE, 1), (WAITING, 2), (THROUGH, -1))
    run = run_of(engine, exchanges={1: messages}, from_python={1})
    assert not run.follow(engine.state)
    assert run.pending() == ([], [Message(9, ((0, 4),))])
    assert not run.wait(0.0)
    assert not run.wait(0.0)  # now they are through, and the engine waits
    assert messages.did == ["start", "wait", "wait", "wait"]
    assert run.pending() == ([], [Message(7, ((0, 16),))])
    assert run.wait(0.0)
    assert engine.slept == [0, 0]


def test_messages_of_compiled_code_are_awaited_there():
    messages = Messages()
    engine = Engine((TO_EXCHANGE, 1), (TO_EXCHANGE, 1), (THROUGH, -1))
    run = run_of(engine, exchanges={1: messages})
    assert not run.follow(engine.state)
    assert run.pending()[1][0].peer == 9
    assert run.wait(0.005)
    assert "start" not in messages.did and engine.slept == [5000, 5000]


@pytest.mark.parametrize("way", ["follow", "wait"])
@pytest.mark.parametrize("stage", [1, -1])
def test_what_compiled_code_ran_into_is_raised(way, stage):
    broken = Messages(error=ConnectionError("75"))
    engine = Engine((TO_EXCHANGE, stage), (THROUGH, -1))
    run = run_of(engine, exchanges={1: broken}, credits=broken)
    with pytest.raises(ConnectionError):
        run.follow(engine.state) if way == "follow" else run.wait(1.0)


def test_credits_that_have_not_come_are_named():
    asked = []
    credits_ = SimpleNamespace(check=lambda: None, calls=0)
    credits_.pending = lambda: (asked.append(credits_.calls), ([], [Message(3, ((0, 1),))]))[1]
    engine = Engine((TO_EXCHANGE, -1), (THROUGH, -1))
    engine.credited = 5
    run = run_of(engine, credits=credits_)
    assert not run.follow(engine.state)
    assert run.pending() == ([], [Message(3, ((0, 1),))]) and asked == [5]
    assert run.wait(0.0)


def test_what_it_waits_for_is_freed():
    messages, credits_ = Messages(), Messages()
    run_of(Engine((THROUGH, -1)), exchanges={0: messages}, credits=credits_).free()
    assert messages.did == credits_.did == ["free"]
    run_of(Engine((THROUGH, -1))).free()
