"""Every rank gets the values up to its own, in rank order, each once; relays only carry; turns keep ports apart."""

import re

import pytest

from tests.machines import hosts
from tests.planning.replay import replay, word
from topocomm import catalog
from topocomm.planning.algorithms.relay_chain import relay_chain_scan
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
            Collective(name, ranks),
            paths=PathFinder(machine),
            endpoints=machine.endpoints[:ranks],
        )
        assert proof.complete and proof.each_contribution_once and proof.order_kept
    first = 0 if name == "scan" else 1
    spelled = replay(schedule)
    assert spelled.keys() == {(rank, c) for rank in range(first, ranks) for c in range(len(schedule.chunks))}
    for (rank, _), text in spelled.items():
        assert re.findall("<[^>]*>", text) == [word(other) for other in range(rank + 1 - first)]


@pytest.mark.parametrize("count", range(1, 18))
@pytest.mark.parametrize("name", ["scan", "exscan"])
def test_any_number_of_hosts(name, count):
    machine = hosts(count, 4)
    flow = flow_of(machine, 4 * count, 4)
    assert flow.is_direct == (count == 1)
    for at_once in (False, True):
        right(*relay_chain_scan(flow, 1000, own=name == "scan", at_once=at_once), name, machine)


@pytest.mark.parametrize("ranks", range(2, 17))
@pytest.mark.parametrize("name", ["scan", "exscan"])
def test_any_number_of_ranks(name, ranks):
    machine = catalog("dgx-1-v100", hosts=2)
    flow = flow_of(machine, ranks, ranks)
    for rows in (5, 1000):
        right(*relay_chain_scan(flow, rows, own=name == "scan"), name, machine)


def test_no_two_messages_of_a_turn_share_a_port():
    machine = catalog("mi250x", hosts=3)
    schedule, period = relay_chain_scan(flow_of(machine, 24, 8), 1 << 12, own=True)
    for turn in range(period):
        own = [ends for round_, *ends in _messages(schedule) if round_ % period == turn]
        for side in zip(*own, strict=True):
            assert len(side) == len(set(side))
    assert period > 1 and relay_chain_scan(flow_of(machine, 24, 8), 1 << 12, own=True, at_once=True)[1] == 1


def _messages(schedule):
    return sorted({(round_, src, dst) for round_, src, _, dst, *_ in schedule.transfers.tolist()})


def test_of_few_rows_there_are_few_chunks():
    flow = ChainFlow(2, 1, ((((0, 1), 0.5), ((0, 1), 0.5)),), {(0, 1): ((0, 1.0), (1, 1.0))})
    assert [relay_chain_scan(flow, rows, own=True)[0].chunks for rows in (1, 2)] == [((0, 1),), ((0, 1), (1, 1))]
