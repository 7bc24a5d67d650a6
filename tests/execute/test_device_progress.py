"""How long a device may take: what hangs is told from what is busy."""

import time

import pytest

from topocomm import DeadlineError
from topocomm.execute.awaited import Awaited
from topocomm.execute.device_progress import Flights
from topocomm.execute.recorder import Recorder
from topocomm.execute.transports.threads import World
from topocomm.execute.transports.transport import Message
from topocomm.execute.transports.wire import NoWire
from topocomm.execute.waiting import Waiting

LIMIT_S = 0.2


class Lane:
    """A lane on a device that is so many calls behind."""

    ranks = (1,)

    def __init__(self, behind):
        self.begun, self.behind, self.marked = 0, behind, None

    def mark(self):
        self.marked = self.begun

    def advance(self, timeout_s):
        return self.marked <= self.begun - self.behind

    def awaited(self):
        return Awaited(None, (), (Message(1, ((0, 8),)),))


def flights():
    transport = World(2).transports()[0]
    return Flights(Waiting(transport, LIMIT_S, lambda tag: "a call", Recorder()), NoWire())


def go_on(flights, lanes, times_s):
    until_s, number = time.monotonic() + times_s, 0
    while time.monotonic() < until_s:
        for lane in lanes:
            flights.look()
            lane.begun += 1
            number += 1
            flights.add(lane, 16, number)
        time.sleep(0.001)


@pytest.mark.alone
def test_a_device_that_is_always_behind_does_not_hang():
    held, lanes = flights(), [Lane(3), Lane(5)]
    go_on(held, lanes, 4 * LIMIT_S)
    assert len(held._out) <= len(lanes)


@pytest.mark.alone
def test_one_that_stands_still_does():
    with pytest.raises(
        DeadlineError, match=r"call 1 \(a call\): still waiting for rank 1 \(8 bytes from it\) after 0.2 s"
    ):
        go_on(flights(), [Lane(10**9)], 4 * LIMIT_S)
