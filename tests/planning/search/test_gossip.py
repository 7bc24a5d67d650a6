import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tests.machines import hosts, line, switch
from tests.planning.search import brute
from topocomm.planning.cost.cost_models import Cost
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.schedule.schedule import Transfer, make_schedule
from topocomm.planning.search.gossip import Timed, assign_rounds, bit_rows, replay, reversed_in_time, trim


@st.composite
def gossips(draw):
    """(latencies, gossip, ports): any messages, useful or not."""
    count = draw(st.integers(1, 6))
    ports = draw(st.integers(1, 3))
    dice = random.Random(draw(st.integers(0, 10**6)))
    latency = np.array([[dice.choice([1, 2, 5, 7.5]) * (a != b) for b in range(count)] for a in range(count)], float)
    gossip = []
    for _ in range(draw(st.integers(0, 6))):
        edges = [(a, b) for a in range(count) for b in range(count) if a != b]
        dice.shuffle(edges)
        messages = []
        for a, b in edges[: dice.randint(0, 2 * count)]:
            if sum(a == c for c, _ in messages) < ports and sum(b == d for _, d in messages) < ports:
                messages.append((a, b))
        gossip.append(tuple(messages))
    return latency, tuple(gossip), ports


@given(gossips())
def test_the_time_is_that_of_the_letter_of_the_model(case):
    latency, gossip, ports = case
    wants = brute.everything(len(latency))
    time, complete = brute.replay(gossip, latency, wants, ports)
    assert brute.gossip_time_us(gossip, latency, wants, ports) == pytest.approx(time if complete else np.inf)


@given(gossips(), st.integers(0, 10**6))
def test_a_trimmed_gossip_takes_the_same_time_and_sends_the_same(case, seed):
    latency, gossip, ports = case
    dice = random.Random(seed)
    wants = np.array([[dice.random() < 0.6 for _ in latency] for _ in latency])
    wanted = bit_rows(wants.T)
    before = replay(gossip, latency.tolist(), wanted, ports)
    after = replay(trim(gossip, latency.tolist(), wanted, ports), latency.tolist(), wanted, ports)
    assert sorted(m[1:] for m in after.sent) == sorted(m[1:] for m in before.sent)
    assert (after.time_us, after.missing, after.done_us) == (before.time_us, before.missing, before.done_us)


def allgather(gossip, count):
    """The gossip as a schedule in which every contribution is a chunk."""
    known = [{rank} for rank in range(count)]
    transfers = []
    for number, messages in enumerate(gossip):
        before = [set(held) for held in known]
        for src, dst in messages:
            news = sorted(before[src] - known[dst])
            transfers += [Transfer(number, src, 0, dst, 0, chunk) for chunk in news]
            known[dst] |= before[src]
    return make_schedule(
        count,
        [(rank, 1) for rank in range(count)],
        inputs=[(rank, 0, rank) for rank in range(count)],
        outputs=[(rank, 0, chunk) for rank in range(count) for chunk in range(count)],
        transfers=transfers,
        combines=[],
        owners=tuple(range(count)),
    )


@pytest.mark.parametrize("ports", [1, 2])
@pytest.mark.parametrize("topology", [switch(7), hosts(2, 4), line(5)], ids=lambda t: t.name)
def test_the_time_is_that_of_the_schedule_that_carries_every_contribution(topology, ports):
    latency = brute.machine(topology)
    count = len(latency)
    ends = [device.id for device in topology.devices if device.kind == "gpu"]
    dice = random.Random(count)
    edges = [(a, b) for a in range(count) for b in range(count) if a != b and np.isfinite(latency[a, b])]
    compared = 0
    for _ in range(30):
        gossip = []
        for _ in range(12):
            some = dice.sample(edges, min(len(edges), count))
            gossip.append(tuple(m for i, m in enumerate(some) if all(m[0] != o[0] and m[1] != o[1] for o in some[:i])))
        time = brute.gossip_time_us(tuple(gossip), latency, brute.everything(count), ports)
        if np.isfinite(time):
            compared += 1
            paths = PathFinder(topology)
            cost = Cost(allgather(gossip, count), ends, paths, row_bytes=0, ports=ports)
            assert cost.alpha_us == pytest.approx(time)
    assert compared > 3


def test_a_message_waits_for_what_it_carries_and_for_nothing_else():
    latency = np.array([[0, 1, 9], [1, 0, 1], [9, 1, 0]], float)
    late = (((0, 1),), ((1, 2), (2, 1)), ((1, 0),))
    assert brute.gossip_time_us(late, latency, brute.everything(3), 1) == 3.0
    wants = np.zeros((3, 3), bool)
    wants[1, 2] = True  # rank 2 wants the contribution of rank 1 alone: it need not wait for that of rank 0
    assert brute.gossip_time_us(late, latency, wants, 1) == 1.0


def test_a_contribution_that_never_arrives_makes_the_time_infinite():
    latency = brute.direct(3, [(0, 1), (1, 2)])
    assert brute.gossip_time_us((((0, 1),), ((1, 2),)), latency, brute.everything(3), 1) == np.inf


def test_messages_that_cross_get_rounds_in_which_none_waits_for_what_it_need_not_carry():
    # 0 -> 1 takes long; meanwhile 1 tells 2 and 3, which must not wait for it.
    latency = np.full((4, 4), 1.0)
    latency[0, 1] = 9.0
    np.fill_diagonal(latency, 0.0)
    timed = [Timed(0.0, 9.0, 0, 1), Timed(0.0, 1.0, 1, 2), Timed(1.0, 2.0, 1, 3), Timed(9.0, 10.0, 1, 2)]
    wants = np.zeros((4, 4), bool)
    wants[0, 1:] = wants[1, 2:] = True
    wants[0, 3] = False
    run = replay(assign_rounds(timed), latency.tolist(), bit_rows(wants.T), 1)
    assert sorted((m.start_us, m.arrival_us, m.src, m.dst) for m in run.sent) == sorted(timed)
    assert run.missing == 0


@examples(40)
@given(st.integers(2, 7), st.integers(0, 10**6))
def test_a_broadcast_backwards_is_a_reduce_of_the_same_time(count, seed):
    dice = random.Random(seed)
    latency = np.array([[dice.randint(1, 9) * (a != b) for b in range(count)] for a in range(count)], float)
    told, rounds = [0], []
    for rank in range(1, count):
        rounds.append(((dice.choice(told), rank),))
        told.append(rank)
    wants = np.zeros((count, count), bool)
    wants[0] = True
    run = replay(rounds, latency.tolist(), bit_rows(wants.T), 1)
    back = reversed_in_time(run.sent, run.time_us)
    assert brute.gossip_time_us(back, latency.T, wants.T, 1) == pytest.approx(run.time_us)
