"""A machine as columns against searches over dictionaries, which share no code with it."""

from itertools import product
from unittest.mock import patch

import numpy as np
import pytest

from tests.planning.bounds.machines import random_machine
from topocomm.native._native import least_sums
from topocomm.planning.bounds.machine_columns import NOBODY, Machine
from topocomm.planning.certificate_checker.witness_graph import WitnessGraph
from topocomm.planning.routing.paths import PathFinder


def both(seed):
    """(machine, graph of the checker, endpoint of every rank)."""
    topology, ranks = random_machine(seed)
    return Machine(ranks, PathFinder(topology)), WitnessGraph(topology, ranks), ranks


@pytest.mark.parametrize("seed", range(40))
def test_least_latencies_and_messages(seed):
    machine, graph, ranks = both(seed)
    starts, hop = machine.starts(machine.place), machine.is_end[machine.src].astype(float)
    for weights, away in (
        (machine.latency_us, graph.relayed_us),
        (hop, lambda a, b: graph._search(a, b, by_hops=True)),
    ):
        wanted = np.array([[away(a, b) for b in ranks] for a in ranks])
        assert machine.least(starts, weights, relays=True)[:, machine.place] == pytest.approx(wanted)
        assert machine.least(starts, weights, relays=True, backward=True)[:, machine.place] == pytest.approx(wanted.T)


@pytest.mark.parametrize("seed", range(40))
def test_both_ways_give_the_same_sums(seed):
    """Bit by bit: with relays and without, there and back, from several devices at once, over links that are closed."""
    machine, _, _ = both(seed)
    rng = np.random.default_rng(seed)
    starts = np.where(rng.random((4, machine.devices)) < 0.3, rng.random((4, machine.devices)), np.inf)
    weights = np.where(rng.random(len(machine.src)) < 0.2, np.inf, rng.random(len(machine.src)))
    for relays, backward in product((True, False), repeat=2):
        found = machine.least(starts, weights, relays=relays, backward=backward)
        assert found.tobytes() == machine._least_plainly(starts, weights, relays=relays, backward=backward).tobytes()
        with patch.dict("sys.modules", {"topocomm.native._native": None}):
            assert machine.least(starts, weights, relays=relays, backward=backward).tobytes() == found.tobytes()


def test_columns_that_do_not_fit_each_other_are_refused():
    """Each would be read or written past its end."""

    def columns():
        return [
            *(np.array([0, 1]), np.array([1, 2]), np.array([True, False]), np.array([2.0, 3.0]), np.array([True])),
            *(np.array([[0.0, np.inf, np.inf]]), np.empty((1, 3))),
        ]

    least_sums(*(good := columns()))
    assert good[-1].tolist() == [[0.0, 2.0, 5.0]]
    for which in range(7):
        wrong = columns()
        wrong[which] = wrong[which][..., :-1].copy()
        with pytest.raises(ValueError, match="do not fit each other"):
            least_sums(*wrong)
    for which, value in [(0, 3), (0, -1), (1, 3), (1, -1)]:
        wrong = columns()
        wrong[which][0] = value
        with pytest.raises(ValueError, match="do not fit each other"):
            least_sums(*wrong)


@pytest.mark.parametrize("seed", range(40))
def test_the_cheapest_message(seed):
    machine, graph, ranks = both(seed)
    assert machine.turn_us() == graph.turn_us(ranks)
    assert machine.cheapest_us() == min(graph.cheapest_us(dict(zip(ranks, ranks, strict=True))), graph.turn_us(ranks))
    host = dict(zip(machine.ids, machine.host.tolist(), strict=True))
    assert machine.cheapest_across_us(machine.host_of_ends) == graph.cheapest_us({end: host[end] for end in ranks})


@pytest.mark.parametrize("seed", range(40))
def test_borders(seed):
    machine, graph, _ = both(seed)
    labels = np.array([device % 3 if device % 4 else NOBODY for device in range(machine.devices)])
    groups = [{name for name, label in zip(machine.ids, labels, strict=True) if label == group} for group in range(3)]
    into, out = machine.border(labels, 3)
    for index, group in enumerate(groups):
        assert into[index] == graph.borders([group], into=True)
        assert out[index] == graph.borders([group], into=False)
