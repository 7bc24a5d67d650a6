"""Two trees: any number of ranks, order kept, full bandwidth, and at most one message of a phase a port and round."""

from collections import Counter

import pytest

from tests.machines import switch
from tests.planning.replay import collective_of, expected, replay, same
from topocomm import catalog
from topocomm.planning.algorithms.two_tree import two_tree_allreduce, two_tree_broadcast, two_tree_reduce
from topocomm.planning.cost.cost_models import Cost
from topocomm.planning.proof.verify import verify
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.schedule.schedule import Repeat

SOME_HOSTS = {
    "pairs": lambda rank: rank // 2,
    "fives": lambda rank: rank // 5,
    "uneven": lambda rank: rank.bit_length(),
}
RANKS = [*range(1, 18), 31, 32, 33, 64, 100]


def check(schedule, collective, *, in_order):
    proof = verify(schedule, collective, keep_order=in_order)
    assert same(replay(schedule), expected(collective, schedule.chunks), proof.order_kept)


def busiest(schedule):
    """Most messages that a rank sends, or receives, in one round."""
    counts = Counter()
    for move in schedule.transfer_list():
        counts[move.round, "out", move.src] += 1
        counts[move.round, "in", move.dst] += 1
    return max(counts.values(), default=0)


def throughput(schedule, ranks):
    paths = PathFinder(switch(ranks))
    return Cost(schedule, paths.topology.endpoints, paths, row_bytes=4).throughput_gb_per_s


def test_what_passes_from_host_to_host_is_late():
    """A rank sends what came from another host so many levels later than what came from its own."""
    for late in (0, 3):
        schedule = two_tree_broadcast(8, 64, 0, hosts=[rank // 2 for rank in range(8)], late=late)
        first = {(move.dst, move.chunk): move.round for move in schedule.transfer_list()}
        for move in schedule.transfer_list():
            came = first.get((move.src, move.chunk))
            if came is not None:
                crossed = any(
                    each.dst == move.src and each.chunk == move.chunk and each.src // 2 != each.dst // 2
                    for each in schedule.transfer_list()
                )
                assert 2 * late * crossed < move.round - came <= 2 * (1 + late * crossed) + 1
        check(schedule, collective_of("broadcast", 8, root=0), in_order=False)
        made = two_tree_reduce(8, 64, 0, keep_order=True, hosts=[rank // 2 for rank in range(8)], late=late)
        check(made, collective_of("reduce", 8, root=0), in_order=True)


def test_latency_between_hosts_holds_up_no_slice():
    """By rounds alone a NIC keeps what it gets of later slices waiting for what goes on a latency later."""
    machine = catalog("cpu-2-socket", hosts=5)
    hosts = [rank // 16 for rank in range(80)]
    us = [
        Cost(
            two_tree_broadcast(80, 1 << 18, 0, 64, hosts, late),
            machine.endpoints,
            PathFinder(machine),
            row_bytes=4,
            port_model="loggp",
        ).predicted_us
        for late in (0, 4)
    ]
    assert us[1] < 0.5 * us[0]


@pytest.mark.parametrize("ranks", RANKS)
def test_every_rank_holds_what_it_must(ranks):
    for rows in (0, 1, 2, 37):
        check(two_tree_allreduce(ranks, rows), collective_of("allreduce", ranks), in_order=True)
        for root in {0, ranks // 3, ranks // 2, ranks - 1}:
            for keep in (False, True):
                schedule = two_tree_reduce(ranks, rows, root, keep_order=keep)
                check(schedule, collective_of("reduce", ranks, root=root), in_order=keep)
            schedule = two_tree_broadcast(ranks, rows, root)
            check(schedule, collective_of("broadcast", ranks, root=root), in_order=True)


@pytest.mark.parametrize("host", SOME_HOSTS.values(), ids=SOME_HOSTS)
@pytest.mark.parametrize("ranks", RANKS)
def test_hosts_in_a_chain(ranks, host):
    """Each enters and leaves a host once a tree, and no port has more messages than its two halves of the payload."""
    hosts = [host(rank) for rank in range(ranks)]
    for root in {0, ranks // 2, ranks - 1}:
        for keep in (False, True):
            schedule = two_tree_reduce(ranks, 37, root, keep_order=keep, hosts=hosts)
            check(schedule, collective_of("reduce", ranks, root=root), in_order=keep)
            assert keep or busiest(schedule) <= 1
        schedule = two_tree_broadcast(ranks, 37, root, hosts=hosts)
        check(schedule, collective_of("broadcast", ranks, root=root), in_order=True)
        assert busiest(schedule) <= 1
        crossings = Counter(move.chunk for move in schedule.transfer_list() if hosts[move.src] != hosts[move.dst])
        inside = 0 < root < ranks - 1 and {hosts[root]} & {hosts[root - 1], hosts[root + 1]}
        assert max(crossings.values(), default=0) <= len(set(hosts)) + bool(inside)


@pytest.mark.parametrize("ranks", [32, 48, 64])
def test_full_bandwidth_over_hosts_in_a_chain(ranks):
    hosts = [rank // 16 for rank in range(ranks)]
    assert throughput(two_tree_broadcast(ranks, 64, 1, 1, hosts), ranks) == pytest.approx(450.0)
    assert throughput(two_tree_reduce(ranks, 64, 0, keep_order=True, hosts=hosts), ranks) == pytest.approx(450.0)


@pytest.mark.parametrize("ranks", [4, 5, 8, 9, 16, 17, 33, 64])
def test_full_bandwidth_on_a_switch(ranks):
    assert throughput(two_tree_allreduce(ranks, 64), ranks) == pytest.approx(225.0)
    assert throughput(two_tree_broadcast(ranks, 64, 1), ranks) == pytest.approx(450.0)
    assert throughput(two_tree_reduce(ranks, 64, 1, keep_order=False), ranks) == pytest.approx(450.0)
    assert throughput(two_tree_reduce(ranks, 64, ranks - 1, keep_order=True), ranks) == pytest.approx(450.0)
    assert throughput(two_tree_reduce(ranks, 64, 1, keep_order=True), ranks) >= 300.0 * (1 - 1e-9)


@pytest.mark.parametrize("ranks", RANKS)
def test_one_message_a_port_and_round(ranks):
    assert busiest(two_tree_broadcast(ranks, 8, ranks // 2)) <= 1
    assert busiest(two_tree_reduce(ranks, 8, ranks // 2, keep_order=False)) <= 1


@pytest.mark.parametrize("ranks", RANKS)
def test_height(ranks):
    levels = ranks.bit_length() + 1
    assert two_tree_broadcast(ranks, 8, 0).rounds <= 2 * levels
    assert two_tree_allreduce(ranks, 8).rounds <= 4 * levels


def test_slices():
    assert two_tree_allreduce(8, 64, 16).repeat == Repeat(16, 4)
    assert two_tree_broadcast(8, 64, 0, 16).repeat == Repeat(16, 2)
    assert two_tree_broadcast(8, 8, 0, 16).repeat == Repeat(4, 2)
    assert two_tree_reduce(8, 64, 0, keep_order=True, slices=1).repeat is None
