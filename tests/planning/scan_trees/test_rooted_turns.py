"""Turns of rooted trees: each hop after what it needs, no two on a port at once, and plans take what they say."""

import numpy as np
import pytest

from tests.planning.scan_trees.test_tree_packing import hops_of
from topocomm import catalog
from topocomm.planning.cost.cost_models import Cost
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.scan_trees.hop_clock import SAME, hop_rounds
from topocomm.planning.scan_trees.host_trees import owners, rooted_trees
from topocomm.planning.scan_trees.rank_trees import NO_RANK, Nodes
from topocomm.planning.scan_trees.rooted_turns import _listed, rooted_clock
from topocomm.planning.scan_trees.tree_packing import packed_trees
from topocomm.planning.scan_trees.tree_scan import tree_scan
from topocomm.planning.schedule.schedule import split_rows

MIB = 1 << 20


def test_hops_wait_for_others_and_for_ports():
    rng = np.random.default_rng(3)
    loads = rng.uniform(0.5, 1.5, (60, 8)) * (rng.random((60, 8)) < 0.3)
    takes = loads.max(axis=1) + 0.25
    after = [tuple(rng.choice(hop, min(hop, 2), replace=False).tolist()) for hop in range(60)]
    starts = _listed(loads, takes, after)
    for hop, earlier in enumerate(after):
        assert all(starts[hop] >= starts[each] + takes[each] - 1e-6 for each in earlier)
    for port in range(8):
        own = np.flatnonzero(loads[:, port])
        order = own[np.argsort(starts[own])]
        assert (starts[order][:-1] + loads[order[:-1], port] <= starts[order][1:] + 1e-6).all()


def straight_to_all(count, trees):
    return np.full((trees, 1, count), NO_RANK)


@pytest.mark.parametrize("above_of", [owners, straight_to_all])
@pytest.mark.parametrize(("system", "count"), [("dgx-1-v100", 4), ("mi250x", 3), ("dgx-2", 5), ("dgx-1-v100", 40)])
def test_nothing_waits_for_the_next_period(system, count, above_of):
    """A hop whose turn came before what it sends would be late by all other messages."""
    machine = catalog(system, hosts=count)
    hosts = hops_of(machine, len(machine.endpoints) // count)
    trees, above = packed_trees(hosts, 4, 0.01, rooted=True), above_of(count, 4)
    made, clock = rooted_trees(hosts, trees, above), rooted_clock(hosts, trees, above, 20.0)
    assert clock.up.shape[:2] == made.parents.shape
    rounds = hop_rounds(Nodes(made.parents), made, clock)
    assert max(rounds.up.max(), rounds.down.max(), rounds.across.max(initial=0)) < rounds.period
    assert rounds.slice_takes <= clock.period * (1 + SAME)


@pytest.mark.parametrize("above_of", [owners, straight_to_all])
@pytest.mark.parametrize(("system", "count"), [("dgx-1-v100", 16), ("mi250x", 7), ("dgx-2", 4), ("rtx4090-pcie-8", 6)])
def test_plans_take_what_the_turns_say(system, count, above_of):
    machine = catalog(system, hosts=count)
    hosts, payload_bytes = hops_of(machine, len(machine.endpoints) // count), MIB
    payload_us = payload_bytes / hosts.fastest / 1e3
    trees, above = packed_trees(hosts, 16, 1 / payload_us, rooted=True), above_of(count, 16)
    made, clock = rooted_trees(hosts, trees, above), rooted_clock(hosts, trees, above, payload_us)
    schedule, _ = tree_scan(made, split_rows(payload_bytes // 4, len(made.parents)), own=True, clock=clock)
    cost = Cost(schedule, machine.endpoints, PathFinder(machine), row_bytes=4, port_model="loggp")
    assert 0.9 * clock.period * payload_us <= cost.predicted_us <= 1.12 * clock.period * payload_us
