"""Latency and rounds bounds: never above the exact optimum, and what they are on known machines."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tests.machines import switch
from tests.planning.bounds.collectives import collectives
from tests.planning.optimum import beats
from topocomm import Device, Link, PlanError, Topology, catalog, check_certificate, plan
from topocomm.planning.bounds import bounds_of
from topocomm.planning.bounds.latency_bound import postal_us
from topocomm.planning.collectives import COLLECTIVES, Collective
from topocomm.planning.plan import OBJECTIVES
from topocomm.planning.routing.paths import PathFinder


def found(machine, name="allreduce", ports=1, ranks=None, port_model="alpha", **fields):
    ends = ranks or machine.endpoints
    return bounds_of(
        Collective(name, len(ends), **fields), ends, PathFinder(machine), ports=ports, port_model=port_model
    )


@st.composite
def meshes(draw, ranks):
    """Endpoints with a direct link each way, some missing, on one to three hosts; latencies of few or many values."""
    some = st.sampled_from(draw(st.sampled_from([(1.0, 4.0), (1.0, 1.0, 2.5, 7.0), (0.6, 1.1, 2.3, 3.7, 5.9)])))
    latency = [[draw(some) for _ in range(ranks)] for _ in range(ranks)]
    hosts_of = [draw(st.integers(0, 2)) for _ in range(ranks)]
    missing = draw(st.sets(st.tuples(st.integers(0, ranks - 1), st.integers(0, ranks - 1)), max_size=2))
    by_host = draw(st.booleans())
    for a in range(ranks):
        for b in range(ranks):
            if by_host:
                latency[a][b] = 1.0 if hosts_of[a] == hosts_of[b] else 4.0
            if (a, b) in missing and ranks > 3:
                latency[a][b] = inf
    return latency, hosts_of


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


def holds(collective, machine, ends, latency, ports):
    bounds = bounds_of(collective, ends, PathFinder(machine), ports=ports, port_model="alpha")
    assert not beats(bounds.alpha_us, collective, ends, latency, latency, ports), bounds.latency_bound
    unit = [[1.0 if us < inf else us for us in row] for row in latency]
    assert not beats(bounds.rounds, collective, ends, unit, unit, ports), bounds.rounds_bound


@examples(150)
@given(st.data())
def test_no_bound_is_above_the_optimum_of_three_ranks(data):
    latency, hosts_of = data.draw(meshes(3))
    machine = mesh(latency, hosts_of)
    holds(data.draw(collectives(3)), machine, machine.endpoints, latency, data.draw(st.integers(1, 2)))


@examples(60)
@given(st.data())
def test_no_bound_is_above_the_optimum_of_four_ranks(data):
    latency, hosts_of = data.draw(meshes(4))
    machine = mesh(latency, hosts_of)
    holds(data.draw(collectives(4)), machine, machine.endpoints, latency, data.draw(st.integers(1, 3)))


@examples(40)
@given(st.data())
def test_no_bound_is_above_the_optimum_of_a_broadcast_over_two_hosts(data):
    """Six ranks: beyond what other collectives can be searched for."""
    hosts_of = data.draw(st.permutations([0, 0, 0, 1, 1, data.draw(st.integers(0, 2))]))
    across = data.draw(st.sampled_from([1.5, 2.0, 3.5]))
    latency = [[1.0 if a == b else across for b in hosts_of] for a in hosts_of]
    machine = mesh(latency, hosts_of)
    collective, ports = Collective("broadcast", 6, root=data.draw(st.integers(0, 5))), data.draw(st.integers(1, 2))
    bounds = bounds_of(collective, machine.endpoints, PathFinder(machine), ports=ports, port_model="alpha")
    assert not beats(bounds.alpha_us, collective, machine.endpoints, latency, latency, ports), bounds.latency_bound


@examples(60)
@given(st.data())
def test_no_bound_is_above_the_optimum_of_ranks_that_share_endpoints(data):
    """Endpoints on a switch whose links all differ, with up to four ranks in all."""
    us = st.sampled_from([0.5, 1.0, 2.0])
    out, into = ([data.draw(us) for _ in range(3)] for _ in range(2))
    links = [Link(f"GPU{i}", "switch", "nvlink", 1, 10.0, out[i]) for i in range(3)]
    links += [Link("switch", f"GPU{i}", "nvlink", 1, 10.0, into[i]) for i in range(3)]
    machine = Topology("shared", "test", (*switch(3).devices,), tuple(links))
    place = data.draw(st.lists(st.integers(0, 2), min_size=2, max_size=4))
    ends = [f"GPU{i}" for i in place]
    latency = [[out[a] + into[b] for b in place] for a in place]
    holds(data.draw(collectives(len(ends))), machine, ends, latency, data.draw(st.integers(1, 2)))


@examples(60)
@given(st.data())
def test_no_bound_is_above_the_optimum_under_loggp(data):
    gap_us = data.draw(st.sampled_from([0.3, 1.0, 2.0]))
    latency, hosts_of = data.draw(meshes(3))
    machine = mesh(latency, hosts_of, gap_us)
    collective, ports = data.draw(collectives(3)), data.draw(st.integers(1, 2))
    bounds = bounds_of(collective, machine.endpoints, PathFinder(machine), ports=ports, port_model="loggp")
    hold = [[gap_us] * 3] * 3
    assert not beats(bounds.alpha_us, collective, machine.endpoints, latency, hold, ports), bounds.latency_bound


def test_one_level_is_doubling():
    assert found(switch(8)).latency_bound.witness["kind"] == "messages"
    assert found(switch(8), ports=2).alpha_us == pytest.approx(1.2)
    assert found(switch(8), ports=7).alpha_us == pytest.approx(0.6)


def test_clusters_inside_a_host_are_found_by_latency():
    """Two groups of four on PCIe, 1.4 us inside and 2.0 across, on one host: 3 messages of which one crosses."""
    made = found(catalog("rtx4090-pcie-8"))
    assert made.alpha_us == pytest.approx(2 * 1.4 + 2.0)
    assert made.latency_bound.witness["groups"] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_collectives_with_a_root_are_bounded_by_its_group():
    """Uneven hosts: 1 and 4 GPUs. From the one, a message across, then two doublings."""
    machine = mesh([[1.0 if (a > 0) == (b > 0) else 5.0 for b in range(5)] for a in range(5)], [0, 1, 1, 1, 1])
    assert found(machine, "broadcast", root=0).alpha_us == pytest.approx(7.0)
    assert found(machine, "reduce", root=0).alpha_us == pytest.approx(7.0)
    assert found(machine, "broadcast", root=1).alpha_us == pytest.approx(6.0)


@pytest.mark.parametrize(
    ("needs", "latency", "gap", "ports", "us"), [(2, 5, 1, 1, 5), (3, 5, 1, 1, 6), (8, 1, 1, 1, 3), (9, 1, 1, 2, 2)]
)
def test_the_postal_model(needs, latency, gap, ports, us):
    assert postal_us(needs, latency, gap, ports) == pytest.approx(us)


def test_gaps_bind_where_links_have_them():
    machine = switch(8, gap_us=0.4)
    made = found(machine, port_model="loggp")
    assert made.latency_bound.witness["kind"] == "postal"
    assert made.alpha_us > 0.6
    assert found(switch(8), port_model="loggp").alpha_us == pytest.approx(0.6)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_ranks_with_no_distance_between_them_have_a_witness(collective):
    """Links of no latency, or all ranks on one endpoint without a switch: some pair is named all the same."""
    links = tuple(Link(a, b, "nvlink", 1, 10.0, 0.0) for a, b in (("GPU0", "GPU1"), ("GPU1", "GPU0")))
    machine = Topology("still", "test", (Device("GPU0", "gpu"), Device("GPU1", "gpu")), links)
    for ranks in (None, ["GPU1"] * 3, ["GPU1", "GPU0", "GPU0"]):
        for objective in OBJECTIVES:
            made = plan(machine, collective, payload_bytes=0, objective=objective, ranks=ranks)
            check_certificate(machine, made)


def test_what_cannot_reach_is_named():
    machine = mesh([[1.0, inf], [1.0, 1.0]], [0, 0])
    with pytest.raises(PlanError, match="no way leads from GPU0 to GPU1"):
        found(machine)
    assert found(machine, "reduce", root=0).alpha_us == 1.0
