"""Every part comes to all members once, by one message of a cluster of another owner, and no bus carries it twice."""

import numpy as np
import pytest

from tests.machines import switch
from topocomm import catalog, check_certificate, plan
from topocomm.planning.routing.cluster_trees import cluster_trees
from topocomm.planning.routing.paths import PathFinder


def order_of(machine, chunk_bytes=1024.0):
    return cluster_trees(machine.endpoints, PathFinder(machine), chunk_bytes)


@pytest.mark.parametrize(("system", "cluster"), [("cpu-2-socket", 8), ("cpu-2-socket-64", 32), ("rtx4090-pcie-8", 4)])
def test_every_part_comes_to_all_once_from_one_who_has_it(system, cluster):
    machine = catalog(system)
    order, count = order_of(machine), len(machine.endpoints)
    has = dict.fromkeys(((owner, owner) for owner in range(count)), -1)
    for round_, part, src, dst in order.messages.tolist():
        assert has[part, src] < round_ < order.rounds and (part, dst) not in has
        has[part, dst] = round_
    assert len(has) == count * count
    crosses = order.messages[:, 2] // cluster != order.messages[:, 3] // cluster
    assert (np.bincount(order.messages[crosses, 1]) == 1).all()
    assert (np.bincount(order.messages[:, 2]) == count - 1).all()  # all ports are busy alike


def test_the_time_is_that_of_the_busiest_port():
    """63 parts of 1 KiB at 10 GB/s, 0.6 us to the other socket and 0.2 us inside."""
    assert order_of(catalog("cpu-2-socket-64")).us == pytest.approx(0.8 + 63 * 1024 / 10e3)


@pytest.mark.parametrize("machine", [switch(8), catalog("cpu-1-socket"), catalog("rtx3090-pair")])
def test_members_without_clusters_have_none(machine):
    assert order_of(machine) is None


def test_clusters_that_are_unequal_have_none():
    machine = catalog("cpu-2-socket")
    assert cluster_trees(machine.endpoints[1:], PathFinder(machine), 1024.0) is None


@pytest.mark.parametrize(
    ("system", "count", "name", "payload_bytes", "most"),
    [
        ("cpu-2-socket-64", 9, "broadcast", 30_536, 1.8),  # was 3.05: around rings of 64 cores, or all at once
        ("cpu-2-socket-64", 7, "allgather", 43_668, 2.0),  # 3.98
        ("cpu-2-socket-64", 4, "allreduce", 4_116, 1.35),  # 3.22: whole
        ("cpu-2-socket-64", 3, "allreduce", 1_276, 1.3),  # 2.09
        ("cpu-2-socket", 1, "reduce", 2_624, 1.9),  # 2.61
        ("cpu-2-socket", 16, "allreduce", 64 << 10, 2.15),  # 2.65
    ],
)
def test_hosts_of_two_sockets(system, count, name, payload_bytes, most):
    machine = catalog(system, hosts=count)
    made = plan(machine, name, payload_bytes=payload_bytes)
    assert made.certificate.gap <= most
    check_certificate(machine, made)
