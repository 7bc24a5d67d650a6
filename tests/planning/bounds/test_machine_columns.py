"""A machine as columns against searches over dictionaries, which share no code with it."""

import numpy as np
import pytest

from tests.planning.bounds.machines import random_machine
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
