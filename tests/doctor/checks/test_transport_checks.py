"""Which transport ranks use, why, and which way an allreduce goes by size."""

from types import SimpleNamespace

import pytest

from tests.doctor.findings import found
from topocomm import catalog, run_local
from topocomm.doctor.checks import transport_checks as transport


class _Transport:
    def __init__(self, name, hosts):
        self.name, self.hosts, self.size, self.in_process = name, hosts, len(hosts), name == "threads"


class _Comm:
    """What `check_transport` looks at: a transport, and the host of every rank."""

    def __init__(self, name, hosts, machines):
        self.session = SimpleNamespace(transport=_Transport(name, hosts))
        self.topology = catalog("dgx-h100", hosts=max(machines) + 1)
        first = {device.host: device.id for device in reversed(self.topology.devices) if device.kind == "gpu"}
        self.places = tuple(list(first.values())[::-1][machine] for machine in machines)


@pytest.mark.parametrize(
    ("name", "hosts", "machines", "fine", "level", "parts"),
    [
        ("mpi", (0,), (0,), (True, True), "ok", ["one rank"]),
        ("threads", (0, 1), (0, 0), (True, True), "ok", ["threads of one process"]),
        ("mpi", (0, 0, 0), (0, 0, 0), (True, True), "ok", ["ranks 0-2 share memory"]),
        ("mpi", (0, 0, 1, 1), (0, 0, 1, 1), (True, True), "ok", ["ranks 0-1", "ranks 2-3", "MPI messages between"]),
        ("torch", (0, 1), (0, 1), (True, True), "ok", ["gloo messages between hosts", "one rank on each"]),
        ("mpi", (0, 1), (0, 0), (False, True), "warn", ["no compiled code", "see `native` and `kernels` above"]),
        ("mpi", (0, 1), (0, 0), (True, False), "warn", ["cannot be mapped"]),
        ("mpi", (0, 1), (0, 0), (True, True), "warn", ["different containers"]),
    ],
)
def test_transport_and_its_reason(name, hosts, machines, fine, level, parts):
    kernels, shared = fine
    comm = _Comm(name, hosts, machines)
    found(transport.check_transport(comm, kernels=kernels, shared_memory=shared), level, *parts)


def test_peer_memory_is_tried_where_ranks_share_a_host():
    def body(comm):
        alone = transport.check_peer_memory_of(comm)
        comm.session.transport.hosts = (0, 0)
        tried = transport.check_peer_memory_of(comm)
        assert comm.session.transport.reads_peers
        comm.session.transport.reads_peers = False
        return alone, tried, transport.check_peer_memory_of(comm)

    for alone, tried, (refused,) in run_local(body, ranks=2):
        assert alone == tried == []
        found(refused, "info", "copied twice", "ptrace_scope")


def test_transport_alone():
    found(transport.check_transport_alone(kernels=True, shared_memory=True), "info", "share memory", "mpirun -n 2")
    found(transport.check_transport_alone(kernels=False, shared_memory=True), "info", "messages: no compiled code")
    found(transport.check_transport_alone(kernels=True, shared_memory=False), "info", "cannot be mapped")


def test_ways_by_size_end_with_the_longest():
    ways = run_local(transport.ways_by_size, ranks=2)[0]
    assert ways[-1].up_to_bytes == 64 << 20
    assert transport.ways_text(ways)[-1].lstrip().startswith("longer")
