import random
from math import ceil, inf, log

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from tests.examples import examples
from tests.machines import hosts, joined, line, switch
from tests.planning.search import brute
from topocomm import catalog
from topocomm.errors import PlanError
from topocomm.planning.search import gossip_search as find
from topocomm.planning.search.gossip_search import search_gossip


def uneven(sizes, rail_us=5.0, other_us=6.0):
    """Hosts of that many GPUs: 0.6 us inside, 5.0 between GPUs of one place, 6.0 between others."""
    ranks = [(host, gpu) for host, count in enumerate(sizes) for gpu in range(count)]

    def latency(a, b):
        return 0.0 if a == b else 0.6 if a[0] == b[0] else rail_us if a[1] == b[1] else other_us

    return np.array([[latency(a, b) for b in ranks] for a in ranks])


def bridged(count):
    """Two sockets of pairs with a bridge: 0.7 us in a pair, 1.0 on a socket, 2.0 across."""
    half = count // 2
    return np.array(
        [
            [
                0.0 if a == b else 0.7 if a // 2 == b // 2 else 1.0 if a // half == b // half else 2.0
                for b in range(count)
            ]
            for a in range(count)
        ]
    )


def dead_rail(count):
    """Hosts of 8 without the network port of GPU 3."""
    latency = brute.machine(hosts(count, 8))
    for rank in range(3, 8 * count, 8):
        far = np.arange(8 * count) // 8 != rank // 8
        latency[rank, far] = latency[far, rank] = inf
    return latency


def solved(latency, objective, wants=None, ports=1):
    """What is found, checked by the letter of the model."""
    wants = brute.everything(len(latency)) if wants is None else wants
    found = search_gossip(latency, wants, ports=ports, objective=objective)
    unit = np.where(np.isfinite(latency), 1.0, inf) if objective == "rounds" else latency.copy()
    np.fill_diagonal(unit, 0.0)
    assert brute.gossip_time_us(found.gossip, unit, wants, ports) == pytest.approx(found.time)
    if wants.all():
        time, complete = brute.replay(found.gossip, unit, wants, ports)
        assert complete and time == pytest.approx(found.time)
    if objective == "rounds":
        assert len(found.gossip) == found.time
        for messages in found.gossip:
            for side in ([a for a, _ in messages], [b for _, b in messages]):
                assert max(map(side.count, side)) <= ports
    assert found.bound <= found.time + 1e-9
    assert found.proved == (found.bound >= found.time - 1e-9)
    return found


@pytest.mark.parametrize(
    ("latency", "expected_us"),
    [
        (brute.machine(switch(8)), 1.8),
        (brute.machine(switch(7)), 1.8),
        (brute.machine(catalog("dgx-1-v100")), 2.1),
        (brute.machine(catalog("mi250x")), 2.1),
        (brute.machine(catalog("mi300x-8")), 2.1),
        (brute.machine(catalog("rtx4090-pcie-8")), 4.8),
        (brute.machine(catalog("cpu-2-socket")), 1.2),
        (brute.machine(hosts(2, 8)), 6.8),
        (uneven([8, 4]), 6.8),
        (bridged(8), 3.7),
        (dead_rail(4), 8.0),
        (brute.machine(line(5)), 5.0),
    ],
)
def test_least_times_that_are_proved(latency, expected_us):
    found = solved(latency, "latency")
    assert found.time == pytest.approx(expected_us)
    assert found.proved


@pytest.mark.parametrize(("sizes", "expected_us"), [([8, 7, 8], 8.0)])
def test_hosts_of_uneven_size_need_no_second_hop(quick, sizes, expected_us):
    assert solved(uneven(sizes), "latency").time <= expected_us + 1e-9


def test_a_host_with_one_gpu_less_costs_little(quick):
    assert solved(uneven([8, 7]), "latency").time <= 7.4 + 1e-9
    assert solved(brute.machine(joined([8, 7])), "latency").time <= 28.0 + 1e-9


@pytest.mark.parametrize("count", range(1, 18))
def test_rounds_on_a_switch_are_the_fewest(count):
    for ports in (1, 2, 3):
        found = solved(brute.machine(switch(count)), "rounds", ports=ports)
        assert found.proved
        assert found.time == (ceil(log(count) / log(ports + 1) - 1e-9) if count > 1 else 0)


@pytest.mark.parametrize(
    ("latency", "ports", "rounds"),
    [
        (brute.direct(5, [(i, i + 1) for i in range(4)]), 1, 5),
        (brute.direct(6, [(i, (i + 1) % 6) for i in range(6)]), 1, 3),
        (brute.direct(11, [(i, (i + 1) % 11) for i in range(11)]), 2, 5),
        (brute.direct(4, [(0, 1), (0, 2), (0, 3)]), 1, 5),
        (brute.machine(catalog("dgx-1-v100")), 1, 3),
    ],
)
def test_fewest_rounds_that_are_proved(latency, ports, rounds):
    found = solved(latency, "rounds", ports=ports)
    assert found.proved and found.time == rounds


@pytest.mark.parametrize("collective", ["reduce", "broadcast", "scan"])
@pytest.mark.parametrize("latency", [brute.machine(hosts(2, 8)), bridged(8), uneven([8, 4])])
def test_other_collectives_take_no_longer_than_an_allreduce(collective, latency):
    count = len(latency)
    wants = {
        "reduce": np.tile(np.arange(count) == 0, (count, 1)),
        "broadcast": np.tile((np.arange(count) == 0)[:, None], (1, count)),
        "scan": np.triu(brute.everything(count)),
    }[collective]
    found = solved(latency, "latency", wants)
    assert found.time <= {16: 6.8, 8: 3.7, 12: 6.8}[count] + 1e-9
    if collective != "scan":
        assert sum(map(len, found.gossip)) == count - 1


@pytest.mark.parametrize("seed", range(6))
def test_broadcast_and_reduce_are_the_best_of_all_trees(seed):
    dice = random.Random(seed)
    count = dice.randint(3, 6)
    latency = np.array([[dice.choice([1.0, 1.5, 4.0]) * (a != b) for b in range(count)] for a in range(count)])
    root = dice.randrange(count)
    wants = np.zeros((count, count), bool)
    wants[root] = True
    assert solved(latency, "latency", wants).time == pytest.approx(brute.least_broadcast(latency, root))
    back = solved(latency.T, "latency", wants.T)
    assert back.proved and back.time == pytest.approx(brute.least_broadcast(latency, root))


@pytest.fixture
def quick(monkeypatch):
    """Short searches: what they return must be right all the same."""
    monkeypatch.setattr(find, "NODES", 300)
    monkeypatch.setattr(find, "GLANCE_NODES", 300)
    monkeypatch.setattr(find, "ROUND_NODES", 300)
    monkeypatch.setattr(find, "PART_NODES", 300)
    monkeypatch.setattr(find, "MOVES", 1000)
    monkeypatch.setattr(find, "WIDTHS", ((128, 16),))


@examples(8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    count=st.integers(1, 9),
    ports=st.integers(1, 2),
    objective=st.sampled_from(["latency", "rounds"]),
    seed=st.integers(0, 10**6),
)
def test_on_any_machine_all_that_is_wanted_arrives_when_it_is_said_to(quick, count, ports, objective, seed):
    dice = random.Random(seed)
    latency = np.full((count, count), inf)
    np.fill_diagonal(latency, 0.0)
    ring = dice.sample(range(count), count)
    edges = [(ring[i - 1], ring[i]) for i in range(count)]
    edges += [(dice.randrange(count), dice.randrange(count)) for _ in range(dice.randint(0, 3 * count))]
    for a, b in edges:
        if a != b:
            latency[a, b] = dice.choice([0.5, 0.7, 2.0, 5.0])
    share = dice.choice([1.0, 1.0, 0.5])
    wants = np.array([[dice.random() < share for _ in range(count)] for _ in range(count)])
    solved(latency, objective, wants, ports)


@pytest.mark.parametrize("count", range(1, 18))
def test_every_number_of_ranks_on_two_hosts(quick, count):
    latency = brute.machine(joined([(count + 1) // 2, count // 2] if count > 1 else [1]))
    found = solved(latency, "latency")
    assert found.time <= 20.0 + 2.0 * 5  # one hop between the hosts, and no more than five inside


def test_a_bound_or_an_incumbent_ends_the_search():
    latency = brute.machine(line(5))
    wants = brute.everything(5)
    assert search_gossip(latency, wants, ports=1, objective="latency", incumbent=5.0) is None
    assert search_gossip(latency, wants, ports=1, objective="latency", incumbent=5.5).time == 5.0
    told = search_gossip(latency, wants, ports=1, objective="latency", lower_bound=5.0)
    assert (told.time, told.proved, told.nodes, told.argument) == (5.0, True, 0, "the bound given")


def test_links_of_one_direction_are_used():
    one_way = np.full((5, 5), inf)
    one_way[range(5), [1, 2, 3, 4, 0]] = 1.0
    np.fill_diagonal(one_way, 0.0)
    assert solved(one_way, "rounds").time == 4


def test_a_message_less_is_missed():
    latency = brute.machine(switch(8))
    gossip = search_gossip(latency, brute.everything(8), ports=1, objective="latency").gossip
    for number, messages in enumerate(gossip):
        for index in range(len(messages)):
            less = (*gossip[:number], messages[:index] + messages[index + 1 :], *gossip[number + 1 :])
            assert brute.gossip_time_us(less, latency, brute.everything(8), 1) == inf


def test_what_cannot_be_is_refused_in_one_line():
    apart = brute.direct(4, [(0, 1), (2, 3)])
    with pytest.raises(PlanError, match="rank 2 needs the contribution of rank 0, and no route"):
        search_gossip(apart, brute.everything(4), ports=1, objective="rounds")
    with pytest.raises(PlanError, match="from rank 1 to rank 2 takes 0 us"):
        search_gossip(np.array([[0, 1, 1], [1, 0, 0], [1, 1, 0.0]]), brute.everything(3), ports=1, objective="latency")
    with pytest.raises(PlanError, match="square"):
        search_gossip(apart, brute.everything(3), ports=1, objective="rounds")
    with pytest.raises(PlanError, match="0 ports"):
        search_gossip(apart, brute.everything(4), ports=0, objective="rounds")
