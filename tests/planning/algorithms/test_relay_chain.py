"""Every rank gets what it should, folded in rank order, each value once; relays only carry; turns keep ports apart."""

import re

import pytest

from tests.machines import hosts
from tests.planning.replay import replay, word
from topocomm import catalog
from topocomm.planning.algorithms.relay_chain import relay_chain
from topocomm.planning.collectives import Collective
from topocomm.planning.forests.chain_flow import ChainFlow, chain_flow
from topocomm.planning.proof.verify import verify
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.schedule.transforms import sliced


def flow_of(machine, ranks, period):
    return chain_flow(machine.endpoints[:ranks], PathFinder(machine), period, 1)


def right(schedule, period, name, machine):
    ranks = schedule.ranks
    for slices in (1, 3):
        proof = verify(
            sliced(schedule, slices, period),
            Collective(name, ranks, root=ranks - 1 if name == "reduce" else 0),
            paths=PathFinder(machine),
            endpoints=machine.endpoints[:ranks],
        )
        assert proof.complete and proof.each_contribution_once and proof.order_kept
    wanted = {
        "scan": {rank: range(rank + 1) for rank in range(ranks)},
        "exscan": {rank: range(rank) for rank in range(1, ranks)},
        "reduce": {ranks - 1: range(ranks)},
        "broadcast": {rank: [0] for rank in range(ranks)},
    }[name]
    spelled = replay(schedule)
    assert spelled.keys() == {(rank, chunk) for rank in wanted for chunk in range(len(schedule.chunks))}
    for (rank, _), text in spelled.items():
        assert re.findall("<[^>]*>", text) == [word(other) for other in wanted[rank]]


@pytest.mark.parametrize("count", range(1, 18))
@pytest.mark.parametrize("name", ["scan", "exscan", "reduce", "broadcast"])
def test_any_number_of_hosts(name, count):
    machine = hosts(count, 4)
    flow = flow_of(machine, 4 * count, 4)
    assert flow.is_direct == (count == 1)
    for at_once in (False, True):
        right(*relay_chain(flow, 1000, name, at_once=at_once), name, machine)


@pytest.mark.parametrize("ranks", range(2, 17))
@pytest.mark.parametrize("name", ["scan", "exscan", "reduce", "broadcast"])
def test_any_number_of_ranks(name, ranks):
    machine = catalog("dgx-1-v100", hosts=2)
    flow = flow_of(machine, ranks, ranks)
    for rows in (5, 1000):
        right(*relay_chain(flow, rows, name), name, machine)


def test_no_two_messages_of_a_turn_share_a_port():
    machine = catalog("mi250x", hosts=3)
    schedule, period = relay_chain(flow_of(machine, 24, 8), 1 << 12, "scan")
    for turn in range(period):
        own = [ends for round_, *ends in _messages(schedule) if round_ % period == turn]
        for side in zip(*own, strict=True):
            assert len(side) == len(set(side))
    assert period > 1 and relay_chain(flow_of(machine, 24, 8), 1 << 12, "scan", at_once=True)[1] == 1


def _messages(schedule):
    return sorted({(round_, src, dst) for round_, src, _, dst, *_ in schedule.transfers.tolist()})


def test_of_few_rows_there_are_few_chunks():
    flow = ChainFlow(2, 1, ((((0, 1), 0.5), ((0, 1), 0.5)),), {(0, 1): ((0, 1.0), (1, 1.0))})
    assert [relay_chain(flow, rows, "scan")[0].chunks for rows in (1, 2)] == [((0, 1),), ((0, 1), (1, 1))]
