import random

import numpy as np
import pytest

from tests.machines import hosts, switch
from tests.planning.search import brute
from topocomm import catalog
from topocomm.planning.search.dissemination_bound import clusters, distances, lower_bound


@pytest.mark.parametrize(
    ("topology", "ports", "expected_us"),
    [
        (switch(8), 1, 1.8),
        (switch(8), 2, 1.2),
        (switch(8), 7, 0.6),
        (catalog("dgx-1-v100"), 1, 2.1),
        (catalog("mi300x-8"), 1, 2.1),
        (hosts(2, 8), 1, 6.8),
        (hosts(4, 8), 1, 8.0),
        (hosts(8, 8), 1, 8.6),
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_the_bound_is_the_known_optimum_of_regular_machines(topology, ports, expected_us):
    latency = brute.machine(topology)
    assert lower_bound(latency, brute.everything(len(latency)), ports).time_us == pytest.approx(expected_us)


@pytest.mark.parametrize("seed", range(12))
def test_no_broadcast_is_faster_than_the_bound(seed):
    dice = random.Random(seed)
    count = dice.randint(2, 6)
    figures = dice.choice([[1.0, 2.0], [0.6, 5.0], [dice.uniform(0.1, 3.0) for _ in range(20)]])
    latency = np.array([[dice.choice(figures) * (a != b) for b in range(count)] for a in range(count)])
    wants = np.zeros((count, count), bool)
    wants[0] = True
    best = brute.least_broadcast(latency, 0)
    assert lower_bound(latency, wants, 1).time_us <= best + 1e-9
    assert lower_bound(latency.T, wants.T, 1).time_us <= best + 1e-9


def test_more_ports_lower_the_bound_and_a_longer_link_raises_it():
    latency = brute.machine(switch(9))
    bounds = [lower_bound(latency, brute.everything(9), ports).time_us for ports in (1, 2, 3, 8)]
    assert bounds == pytest.approx([2.4, 1.2, 1.2, 0.6])
    latency[:, 8] = latency[8, :] = 4.0
    assert lower_bound(latency, brute.everything(9), 1).time_us > 4.0


def test_what_nobody_wants_costs_nothing():
    assert lower_bound(brute.machine(switch(3)), np.eye(3, dtype=bool), 1).time_us == 0.0
    assert lower_bound(np.zeros((1, 1)), np.ones((1, 1), bool), 1).time_us == 0.0


def test_latencies_too_far_apart_for_the_grid_leave_the_distance():
    latency = brute.machine(switch(8)) * 1e-6
    latency[0, 1:] = latency[1:, 0] = 1.0
    assert lower_bound(latency, brute.everything(8), 1).time_us == pytest.approx(1.0)


def test_clusters_are_hosts_and_bridged_pairs():
    labels = clusters(distances(brute.machine(hosts(2, 4))))
    assert [label.tolist() for label in labels] == [[0] * 4 + [4] * 4]
    bridged = np.where(np.eye(4, dtype=bool), 0.0, 2.0)
    bridged[0, 1] = bridged[1, 0] = bridged[2, 3] = bridged[3, 2] = 0.7
    assert [label.tolist() for label in clusters(distances(bridged))] == [[0, 0, 2, 2]]
