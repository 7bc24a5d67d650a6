"""What collectives need, against the checker, which shares no code with it; the farthest pair, against all pairs."""

from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tests.planning.bounds.collectives import collectives
from tests.planning.bounds.machines import random_machine
from topocomm import PlanError
from topocomm.planning.bounds import demand as room
from topocomm.planning.bounds.demand import demand_of
from topocomm.planning.bounds.machine_columns import Machine
from topocomm.planning.certificate_checker.rederive_bounds import Needs
from topocomm.planning.certificate_checker.witness_graph import WitnessGraph
from topocomm.planning.collectives import Collective
from topocomm.planning.routing.paths import PathFinder


@given(st.integers(1, 6).flatmap(collectives))
def test_partners_and_counts(collective):
    demand, needs, ranks = demand_of(collective), Needs(collective), range(collective.ranks)
    for side, counts in (("hears", demand.heard()), ("reaches", demand.reached())):
        partners = [needs.partners(rank, side) for rank in ranks]
        assert [np.flatnonzero(demand.partners(rank, side)).tolist() for rank in ranks] == partners
        assert counts.tolist() == [len(others) + 1 for others in partners]
    assert demand.least_messages() == needs.least_messages()


@given(st.integers(2, 6).flatmap(collectives), st.data())
def test_what_crosses_the_border_of_a_group(collective, data):
    everybody = set(range(collective.ranks))
    labels = np.array(data.draw(st.lists(st.integers(0, 2), min_size=len(everybody), max_size=len(everybody))))
    enters, leaves = demand_of(collective).crossing(labels, 3)
    needs = Needs(collective)
    for group in range(3):
        inside = {rank for rank in everybody if labels[rank] == group}
        if inside and inside != everybody:
            assert enters[group] == pytest.approx(needs.share_into(inside))
            if collective.name not in ("scan", "exscan"):  # of those leaving and entering count other stretches
                assert leaves[group] == pytest.approx(needs.share_into(everybody - inside))


def pairs(topology, ranks, collective):
    """Least latency of every pair of ranks of which one needs the other."""
    needs, graph, everybody = Needs(collective), WitnessGraph(topology, ranks), range(len(ranks))
    return {(a, b): graph.relayed_us(ranks[a], ranks[b]) for a in everybody for b in everybody if needs(a, b)}


@examples(80)
@given(st.integers(0, 10**6), st.data())
def test_the_pair_is_the_farthest_of_all(seed, data):
    topology, ranks = random_machine(seed)
    collective = data.draw(collectives(len(ranks)))
    machine, demand = Machine(ranks, PathFinder(topology)), demand_of(collective)
    apart = pairs(topology, ranks, collective)
    if inf in apart.values():
        with pytest.raises(PlanError, match="no way leads from"):
            room.farthest(demand, machine, machine.latency_us)
    elif apart:
        found, src, dst = room.farthest(demand, machine, machine.latency_us)
        assert found == pytest.approx(max(apart.values()))
        assert apart[src, dst] == pytest.approx(found)


@pytest.mark.parametrize("seed", range(20))
def test_sweeps_find_a_pair_that_is_no_nearer_than_any_of_the_first_rank(seed, monkeypatch):
    monkeypatch.setattr(room, "MOST_SOURCES", 0)
    topology, ranks = random_machine(seed)
    machine, apart = Machine(ranks, PathFinder(topology)), pairs(topology, ranks, collective_of_all(len(ranks)))
    if apart and inf not in apart.values():
        found, src, dst = room.farthest(demand_of(collective_of_all(len(ranks))), machine, machine.latency_us)
        assert apart[src, dst] == pytest.approx(found)
        assert found >= max(us for (a, _), us in apart.items() if a == 0) - 1e-9


def collective_of_all(ranks):
    """A collective in which all need all."""
    return Collective("allreduce", ranks)
