"""What the ranks of a communicator share: calls one at a time, tags, and the end."""

import numpy as np
import pytest

from tests.machines import switch
from topocomm import (
    SUM,
    TopocommError,
    run_local,
)
from topocomm.execute.liveness.recorder import KEPT
from topocomm.execute.session import Session
from topocomm.execute.transports.threads import World


def test_a_closed_communicator_says_why():
    def body(comm):
        with comm:
            comm.allreduce(np.ones(1), SUM)
        with pytest.raises(TopocommError, match="takes no call now: it was closed"):
            comm.allreduce(np.ones(1), SUM)

    run_local(body, ranks=2)


def local_session(ranks=1):
    (transport,) = World(1).transports()
    return Session(transport, switch(ranks), switch(ranks).endpoints[:1])


def test_one_call_at_a_time():
    session = local_session()
    session.enter()
    with pytest.raises(TopocommError, match="rank 0: this communicator takes no call now: another call is running"):
        session.enter()
    assert session.open
    session.leave()
    session.enter()
    session.fail(ValueError("planted"))
    session.leave()  # does not open it again
    with pytest.raises(TopocommError, match="it was closed by ValueError: planted"):
        session.enter()
    assert session.failed and not session.open


def test_tags_are_named_until_the_record_does_not_know_their_calls():
    session = local_session()
    first = session.next_tag("first")
    assert session.next_tag("second") == first + 2 and session.tags_taken == first + 4
    assert session.describe_tag(first) == "first" and session.describe_tag(99) == "a call not known here"
    session.forget_tag(first)
    assert session.describe_tag(first) == "first"
    for tag in range(1000, 1000 + KEPT):
        session.forget_tag(tag)
    assert session.describe_tag(first) == "a call not known here"


def test_tags_end_with_those_of_the_transport():
    session = local_session()
    session.transport.most_tag = session.tags_taken + 3
    session.next_tag()
    with pytest.raises(TopocommError, match="rank 0: more than 9 prepared calls; reuse them"):
        session.next_tag()
