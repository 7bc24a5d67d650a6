"""Least rounds: doubling, messages of a port, messages in a row."""

from math import inf

import pytest

from tests.machines import switch
from topocomm import Device, Link, Topology
from topocomm.planning.bounds import bounds_of, least_rounds
from topocomm.planning.bounds.rounds_bound import payload_words
from topocomm.planning.collectives import Collective
from topocomm.planning.routing.paths import PathFinder


@pytest.mark.parametrize(
    ("ranks", "ports", "rounds"),
    [(1, 1, 0), (2, 1, 1), (3, 1, 2), (8, 1, 3), (9, 1, 4), (8, 2, 2), (9, 2, 2), (10, 2, 3), (8, 7, 1)],
)
def test_least_rounds(ranks, ports, rounds):
    assert least_rounds(ranks, ports) == rounds


def found(machine, name="allreduce", ports=1, ranks=None, port_model="alpha", **fields):
    ends = ranks or machine.endpoints
    return bounds_of(
        Collective(name, len(ends), **fields), ends, PathFinder(machine), ports=ports, port_model=port_model
    )


def mesh(latency, hosts_of, gap_us=None):
    ranks = range(len(latency))
    devices = tuple(Device(f"GPU{rank}", "gpu", host=f"h{hosts_of[rank]}") for rank in ranks)
    links = [
        Link(f"GPU{a}", f"GPU{b}", "nvlink", 1, 10.0, latency[a][b], gap_us)
        for a in ranks
        for b in ranks
        if a != b and latency[a][b] < inf
    ]
    return Topology("mesh", "test", devices, tuple(links))


def test_a_shared_endpoint_serves_its_ranks_one_by_one():
    """Four ranks on one endpoint: 2 (4 - 1) messages through one port, 0.6 us each."""
    made = found(switch(2), ranks=["GPU0"] * 4)
    assert (made.rounds, made.alpha_us) == (6, pytest.approx(3.6))
    assert made.rounds_bound.witness["kind"] == "messages"
    assert found(switch(2), "broadcast", ranks=["GPU0"] * 5 + ["GPU1"]).rounds == 4


def test_hops_bind_on_a_line():
    machine = mesh([[1.0 if abs(a - b) == 1 else inf for b in range(6)] for a in range(6)], [0] * 6)
    made = found(machine)
    assert (made.rounds, made.alpha_us) == (5, 5.0)
    assert made.rounds_bound.witness == {"bounds": "rounds", "kind": "hops", "from": 0, "to": 5, "hops": 5}


def test_shares_of_the_payload_in_words():
    assert [payload_words(share) for share in (1.0, 1 - 1e-15, 0.75, 2.0, 1 / 3)] == [
        "the whole payload",
        "the whole payload",
        "0.75 of the payload",
        "2 of the payload",
        "0.3333 of the payload",
    ]
