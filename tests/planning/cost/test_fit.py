"""Measured pairs on links: what the links say together is what was measured, in the proportions that they had."""

import random
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from topocomm.planning.cost.fit import PairFigures, with_measured
from topocomm.planning.routing.paths import PathFinder
from topocomm.topology.catalog.systems import catalog
from topocomm.topology.model import Device, Link, Pair, Topology


def star(figures):
    """CPUs on one NUMA node; figures are (us, GB/s) of both directions of each one's link."""
    devices = [Device(f"cpu{i}", "cpu") for i in range(len(figures))]
    links = [
        Link(*ends, "shared-memory", None, gb_per_s, latency_us, None, "table", "assumed")
        for i, (latency_us, gb_per_s) in enumerate(figures)
        for ends in ((f"cpu{i}", "numa0"), ("numa0", f"cpu{i}"))
    ]
    return Topology("star", "test", (*devices, Device("numa0", "numa")), tuple(links))


def tree(seed, ends):
    """CPUs as leaves of a random tree of switches, with random figures, the same both ways."""
    rng = random.Random(seed)
    switches = rng.randint(1, 5)
    devices = [*(Device(f"cpu{i}", "cpu") for i in range(ends)), *(Device(f"s{i}", "switch") for i in range(switches))]
    joined = [(f"s{i}", f"s{rng.randrange(i)}") for i in range(1, switches)]
    joined += [(f"cpu{i}", f"s{rng.randrange(switches)}") for i in range(ends)]
    links = []
    for a, b in joined:
        figures = (None, rng.uniform(1, 50), rng.uniform(0.1, 5), None, "table", "assumed")
        links += [Link(a, b, "pcie", *figures), Link(b, a, "pcie", *figures)]
    return Topology("tree", "test", tuple(devices), tuple(links))


def truth_of(topology):
    finder = PathFinder(topology)
    routes = {pair: finder.cheapest(*pair) for pair in combinations(topology.endpoints, 2)}
    return [PairFigures(*pair, route.latency_us, route.gb_per_s) for pair, route in routes.items()]


def fit(topology, measured):
    return with_measured(topology, measured, [None] * len(measured))


def by_ends(topology):
    return {link[:2]: link for link in topology.links}


@examples(40)
@given(st.integers(0, 10**6), st.integers(2, 9))
def test_links_say_together_what_was_measured(seed, ends):
    """Another machine of the same shape is measured: the first gets its figures, pair by pair."""
    shape = tree(seed, ends)
    rng = random.Random(seed + 1)
    there = {frozenset(link[:2]): (rng.uniform(1, 50), rng.uniform(0.1, 5)) for link in shape.links}
    measured = truth_of(
        Topology(
            "true",
            "test",
            shape.devices,
            tuple(
                link._replace(gb_per_s=there[frozenset(link[:2])][0], latency_us=there[frozenset(link[:2])][1])
                for link in shape.links
            ),
        )
    )
    found = fit(shape, measured)
    finder = PathFinder(found)
    for pair in measured:
        for ways in ((pair.a, pair.b), (pair.b, pair.a)):
            route = finder.cheapest(*ways)
            assert route.latency_us == pytest.approx(pair.latency_us, rel=1e-3)
            assert route.gb_per_s == pytest.approx(pair.gb_per_s, rel=1e-5)
    assert found.warnings == ()


def test_proportions_stay_where_pairs_do_not_tell():
    found = by_ends(fit(star([(1.0, 10.0), (3.0, 10.0)]), [PairFigures("cpu0", "cpu1", 8.0, 4.0)]))
    assert found["cpu0", "numa0"].latency_us == pytest.approx(2.0)
    assert found["numa0", "cpu1"].latency_us == pytest.approx(6.0)
    assert {link.gb_per_s for link in found.values()} == {4.0}
    assert {(link.gb_per_s_source, link.latency_us_source) for link in found.values()} == {("measured", "measured")}


def test_a_link_that_is_not_the_narrowest_keeps_the_most_that_went_over_it():
    figures = {("cpu0", "cpu1"): 10.0, ("cpu0", "cpu2"): 2.0, ("cpu1", "cpu2"): 2.0}
    measured = [PairFigures(*pair, 1.0, rate) for pair, rate in figures.items()]
    found = by_ends(fit(star([(0.5, 10.0)] * 3), measured))
    assert [found[f"cpu{i}", "numa0"].gb_per_s for i in range(3)] == [10.0, 10.0, 2.0]


def test_links_that_no_pair_crosses_stay_as_they_were():
    machine = catalog("cpu-2-socket")
    first, second = machine.endpoints[:2]
    found = fit(machine, [PairFigures(first, second, 3.0, 1.0)])
    crossed = set(PathFinder(machine).cheapest(first, second).edges)
    crossed |= {edge[::-1] for edge in crossed}
    for before, after in zip(machine.links, found.links, strict=True):
        assert (after == before) == (before[:2] not in crossed)


def test_parallel_links_share_as_they_did():
    devices = (Device("cpu0", "cpu"), Device("cpu1", "cpu"))
    links = [Link(a, b, "smp", None, rate, 1.0) for a, b in (("cpu0", "cpu1"), ("cpu1", "cpu0")) for rate in (1.0, 3.0)]
    found = fit(Topology("two", "test", devices, tuple(links)), [PairFigures("cpu0", "cpu1", 2.0, 8.0)])
    assert [link.gb_per_s for link in found.links] == [2.0, 6.0, 2.0, 6.0]


def test_parallel_links_of_unknown_rate_share_alike():
    devices = (Device("cpu0", "cpu"), Device("cpu1", "cpu"))
    links = [Link(a, b, "smp") for a, b in (("cpu0", "cpu1"), ("cpu1", "cpu0")) for _ in range(2)]
    found = fit(Topology("two", "test", devices, tuple(links)), [PairFigures("cpu0", "cpu1", 2.0, 8.0)])
    assert [link.gb_per_s for link in found.links] == [4.0] * 4
    assert PathFinder(found).cheapest("cpu0", "cpu1").gb_per_s == 8.0


def test_a_link_without_latency_can_get_one():
    found = fit(star([(0.0, 10.0)] * 2), [PairFigures("cpu0", "cpu1", 8.0, 4.0)])
    assert PathFinder(found).cheapest("cpu0", "cpu1").latency_us == pytest.approx(8.0)


def test_pairs_over_the_same_links_that_are_not_alike_are_said():
    """On a star of three the pairs decide every link; of four, six pairs and four links can disagree."""
    measured = [PairFigures(a, b, 1.0, 5.0) for a, b in combinations([f"cpu{i}" for i in range(4)], 2)]
    measured[0] = measured[0]._replace(latency_us=9.0)
    (warning,) = fit(star([(0.5, 10.0)] * 4), measured).warnings
    assert "cpu0-cpu1 9 us, by its links " in warning
    assert "of 6 pairs" in warning


def test_a_pair_that_no_links_join_stands_in_the_pairs_only():
    devices = (Device("cpu0", "cpu"), Device("cpu1", "cpu"))
    found = fit(Topology("apart", "test", devices, ()), [PairFigures("cpu0", "cpu1", 3.0, 2.0)])
    assert found.pairs == (Pair("cpu0", "cpu1", None, 2.0, 3.0, "measured", "measured"),)
    assert found.warnings == ("no links lead between cpu0-cpu1: what was measured there stands in the pairs only",)


def test_pairs_that_the_topology_has_keep_their_code_and_place():
    before = (Pair("cpu1", "cpu0", "SYS", 1.0), Pair("cpu1", "cpu2", "NODE"))
    machine = star([(1.0, 10.0)] * 3)
    machine = Topology(machine.name, machine.source, machine.devices, machine.links, before)
    found = with_measured(machine, [PairFigures("cpu0", "cpu1", 8.0, 4.0)], ["PHB"])
    assert found.pairs == (Pair("cpu1", "cpu0", "SYS", 4.0, 8.0, "measured", "measured"), before[1])
