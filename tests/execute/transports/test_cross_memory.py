"""Whether ranks may read each other's memory: tried once, agreed by all, whatever one of them finds."""

from types import SimpleNamespace

import pytest

from topocomm import run_local
from topocomm.execute.transports import cross_memory
from topocomm.native import _native


def on_one_host(comm):
    """What all ranks find, as ranks of one host do."""
    comm.session.transport.hosts = (0,) * comm.size
    return cross_memory.can_read_peers(comm.session.waiting)


def test_ranks_try_once_and_agree():
    def body(comm):
        transport = comm.session.transport
        assert transport.reads_peers is None
        found = on_one_host(comm)
        assert transport.reads_peers is found
        return found, cross_memory.can_read_peers(SimpleNamespace(transport=transport))  # no exchange

    assert set(run_local(body, ranks=3)) == {(True, True)}


@pytest.mark.parametrize("refused", [1, 0], ids=["an error", "other memory"])
def test_one_refusal_is_that_of_all(monkeypatch, refused):
    calls = []

    def read_process(process, address, into):
        calls.append(address)
        return refused if len(calls) == 4 else real(process, address, into)

    real = _native.read_process
    monkeypatch.setattr(_native, "read_process", read_process)
    assert run_local(on_one_host, ranks=3) == [False] * 3
