"""Machines on which no pattern meets the bound: what the search finds is planned, proved and no worse."""

import pytest

import topocomm
from tests.concatenation import CONCAT
from tests.machines import joined, line, switch
from topocomm import Device, Link, Topology, check_certificate, plan
from topocomm.planning.collectives import COLLECTIVES
from topocomm.planning.formats.plan_json import plan_document


def bridged(pairs):
    """GPUs on one PCIe switch, 1.4 us apart, with bridges of 0.7 us between some."""
    count = 1 + max(max(pair) for pair in pairs)
    devices = [Device(f"GPU{i}", "gpu") for i in range(count)] + [Device("pcie", "switch")]
    links = []
    for i in range(count):
        for src, dst in ((f"GPU{i}", "pcie"), ("pcie", f"GPU{i}")):
            links.append(Link(src, dst, "pcie", 1, 32.0, 0.7))
    for a, b in pairs:
        links += [Link(f"GPU{x}", f"GPU{y}", "nvlink", 1, 50.0, 0.7) for x, y in ((a, b), (b, a))]
    return Topology("bridged", "test", tuple(devices), tuple(links))


def test_the_dies_of_an_mi250x():
    """Recursive doubling meets pairs without a link; 2.1 us is three messages of the cheapest path."""
    made = plan(topocomm.catalog("mi250x"), payload_bytes=0, objective="latency")
    assert made.figures.alpha_us == pytest.approx(2.1)
    assert made.certificate.gap == pytest.approx(1.0)


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("operator", [topocomm.SUM, CONCAT])
def test_a_line_has_no_pattern_but_a_plan(collective, operator):
    """Neighbours only: contributions are relayed, and order is kept where it must be."""
    for objective in ("latency", "rounds"):
        made = plan(line(5), collective, payload_bytes=0, objective=objective, operator=operator, root=0)
        assert made.figures.rounds <= 5
        assert operator.commutative or made.proof.order_kept


def test_bridges_are_used():
    machine = bridged([(0, 1), (2, 3), (4, 5), (6, 7)])
    made = plan(machine, payload_bytes=0, objective="latency")
    assert made.figures.alpha_us == pytest.approx(0.7 + 2 * 1.4)


@pytest.mark.parametrize("sizes", [(3, 5), (1, 4), pytest.param((7, 8), marks=pytest.mark.long)])
def test_uneven_hosts(sizes):
    made = plan(joined(sizes), payload_bytes=0, objective="latency")
    assert made.figures.alpha_us <= 30.0
    topocomm.check_certificate(joined(sizes), made)


@pytest.mark.long
def test_searches_are_deterministic():
    machine = joined([3, 4])
    digests = {plan(machine, payload_bytes=4 * n, objective="latency").schedule.transfers.tobytes() for n in (0, 1, 2)}
    assert len(digests) == 1


def test_ranks_that_share_an_endpoint_are_not_searched():
    made = plan(switch(3), payload_bytes=0, objective="latency", ranks=["GPU0", "GPU0", "GPU1"])
    assert made.algorithm != "searched"


def test_what_an_exhaustive_search_proved_is_in_the_certificate(tmp_path):
    machine = bridged([(0, 1), (1, 2), (2, 3), (3, 4)])
    made = plan(machine, payload_bytes=0, objective="latency")
    assert made.certificate.gap > 1.0
    assert "an exact search found nothing below" in made.certificate.proved_by_search
    made.save(tmp_path / "plan.json")
    again = topocomm.Plan.load(tmp_path / "plan.json")
    assert again.certificate == made.certificate and again.digest == made.digest
    topocomm.check_certificate(machine, again)


def test_nothing_is_said_of_a_search_where_the_bound_is_met():
    made = plan(switch(8), payload_bytes=0, objective="latency")
    assert made.certificate.proved_by_search == ""
    assert "proved_by_search" not in plan_document(made)["certificate"]


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("objective", ["latency", "rounds", "auto"])
def test_ranks_without_a_way_to_each_other_are_planned_for_every_objective(collective, objective):
    """A search relays over ranks, and the ways of a flow; the cost model of auto is another than that of the search."""
    for port_model in ("alpha", "loggp"):
        one = plan(line(4), collective, payload_bytes=64, objective=objective, port_model=port_model)
        relaying = {"searched", "ways-1"} if collective in ("gather", "scatter", "alltoall") else {"searched"}
        assert one.algorithm in relaying or "scan" in collective  # of these some pass values to neighbours only
        check_certificate(line(4), one)
