"""Flows and lengths by hand on lines, and beside each other on machines: neither can be better than the other."""

from itertools import pairwise

import numpy as np
import pytest

from tests.machines import line
from tests.planning.forests.machines import without
from topocomm import Device, Topology, catalog
from topocomm.planning.forests.linear_program import packing, pair_flow
from topocomm.planning.forests.linear_program.integer_network import network_of
from topocomm.planning.forests.linear_program.pair_flow import least_lengths, pair_ways
from topocomm.planning.forests.linear_program.symmetry import no_symmetry, symmetry_of
from topocomm.planning.routing.paths import PathFinder

MACHINES = {
    "line": line(5),
    "DGX-1": catalog("dgx-1-v100"),
    "DGX-1 without a link": without(catalog("dgx-1-v100"), ("GPU0", "GPU3")),
    "MI250X": catalog("mi250x"),
    "two of four": catalog("v100-4", hosts=2),
    "taper": catalog("dgx-h100-taper2", hosts=2),
}


def program(machine):
    network = network_of(PathFinder(machine), machine.endpoints)
    return network, symmetry_of(network, [machine.by_id[device].host for device in network.devices])


def even(ends):
    return (1.0 - np.eye(ends)) / ends


def uneven(ends):
    return np.array([[(3 * a + 5 * b) % 4 * (a != b) for b in range(ends)] for a in range(ends)]) / ends


def carried_gb_per_s(network, demand, ports, ways):
    """What the busiest link or port leaves of a unit of payload."""
    load = np.zeros(len(network.links))
    held = np.zeros((2, network.ends))
    for pair, own in ways.items():
        for share, way in own:
            assert (way[0].src, way[-1].dst) == pair and all(a.dst == b.src for a, b in pairwise(way))
            for hop in way:
                assert (hop.devices[0], hop.devices[-1]) == (hop.src, hop.dst)
                assert all(device >= network.ends for device in hop.devices[1:-1])
                links = [network.index[edge] for edge in pairwise(hop.devices)]
                load[links] += share * demand[pair]
                time = share * demand[pair] / network.gb_per_s[links].min()
                held[0, hop.src] += time
                held[1, hop.dst] += time
    return 1 / max((load / network.gb_per_s).max(), held.max() / ports if ports else 0.0)


@pytest.mark.parametrize(("ports", "gb_per_s"), [(0, 5.0), (1, 2.5), (2, 5.0)])
def test_three_in_a_row(ports, gb_per_s):
    """Each link has two of six units, at 10 GB/s; the port of the middle two of its own and two that it relays."""
    network, symmetry = program(line(3))
    demand = 1.0 - np.eye(3)
    assert least_lengths(network, demand, ports, symmetry).gb_per_s == pytest.approx(gb_per_s, rel=1e-3)
    ways = pair_ways(network, demand, ports, symmetry)
    assert [[(hop.src, hop.dst) for hop in way] for _, way in ways[0, 2]] == [[(0, 1), (1, 2)]]
    assert ways[0, 1][0][0] == 1.0 and len(ways) == 6


@pytest.mark.parametrize("demand", [even, uneven], ids=["even", "uneven"])
@pytest.mark.parametrize("ports", [0, 1, 2])
@pytest.mark.parametrize("machine", MACHINES)
def test_what_flows_is_what_lengths_allow(machine, ports, demand):
    """Lengths bound every flow, so both are the best where they meet."""
    network, symmetry = program(MACHINES[machine])
    wanted = demand(network.ends)
    if demand is uneven:
        symmetry = no_symmetry(network)
    bound = least_lengths(network, wanted, ports, symmetry)
    carried = network.gb_per_s @ bound.lengths + ports * bound.weights.sum()
    assert carried == pytest.approx(1.0) and min(bound.lengths.min(), bound.weights.min()) >= 0
    ways = pair_ways(network, wanted, ports, symmetry)
    assert set(ways) == {(int(a), int(b)) for a, b in np.argwhere(wanted)}
    assert all(sum(share for share, _ in own) == pytest.approx(1.0) for own in ways.values())
    flow = carried_gb_per_s(network, wanted, ports, ways)
    assert flow <= bound.gb_per_s * (1 + 1e-9) and flow >= bound.gb_per_s * (1 - 5e-3)


def test_pairs_that_a_symmetry_exchanges_have_equal_shares():
    network, symmetry = program(catalog("mi250x"))
    ways = pair_ways(network, even(8), 1, symmetry)
    for element in symmetry.elements.tolist():
        for (src, dst), own in ways.items():
            images = ways[element[src], element[dst]]
            assert sorted(share for share, _ in images) == pytest.approx(sorted(share for share, _ in own))


def test_a_pair_without_a_way():
    devices = tuple(Device(f"GPU{end}", "gpu") for end in range(3))
    machine = Topology("cut", "test", devices, line(2).links)
    network, symmetry = program(machine)
    assert least_lengths(network, even(3), 1, symmetry) is None and pair_ways(network, even(3), 1, symmetry) is None


def test_a_bound_of_many_pairs_ends_after_few_turns(monkeypatch):
    """It holds after any of them, and can only be higher than that of all turns."""
    network, _ = program(MACHINES["DGX-1"])
    demand, turns = uneven(network.ends), []
    full = least_lengths(network, demand, 1, no_symmetry(network)).gb_per_s

    def few(router, accuracy, most_turns, **options):
        turns.append(most_turns)
        return packing.pack(router, accuracy, most_turns, **options)

    monkeypatch.setattr(pair_flow, "pack", few)
    monkeypatch.setattr(pair_flow, "MOST_PRICED", 400)
    soon = least_lengths(network, demand, 1, no_symmetry(network)).gb_per_s
    assert turns == [max(pair_flow.FEWEST_TURNS, 400 // int((demand > 0).sum()))] and turns[0] < pair_flow.MOST_TURNS
    assert full * (1 - 1e-3) <= soon <= 1.5 * full
