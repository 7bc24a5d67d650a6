"""Ping-pong between ranks: who plays when, what becomes of it, and between real processes."""

import json
from itertools import combinations
from math import nan

import numpy as np
import pytest

import topocomm
from topocomm.errors import TopologyError
from topocomm.execute.measure import ping_pong
from topocomm.execute.measure.ping_pong import measure, rounds
from topocomm.execute.start import run_local
from topocomm.topology.catalog.systems import catalog
from topocomm.topology.readers.plain.topology_json import from_document, to_document

LONG_US = ping_pong.RATE_BYTES / 1e3
"""What the long message takes at 1 GB/s."""


@pytest.fixture
def played(monkeypatch):
    """Pairs tell what a function says of their devices."""

    def plant(latency_us):
        def play(two, _):
            if two.rank == 1:
                return [-1.0] * 6  # nobody looks at what this one took
            short = latency_us(*two.places)
            return [short, short, short, *[short + LONG_US] * 3]

        monkeypatch.setattr(ping_pong, "_play", play)

    return plant


@pytest.mark.parametrize("ranks", [*range(2, 18), 64, 101])
def test_every_pair_meets_once_and_nobody_twice_in_a_round(ranks):
    order = rounds(ranks)
    assert sorted(pair for pairs in order for pair in pairs) == sorted(combinations(range(ranks), 2))
    assert len(order) == ranks - 1 + ranks % 2
    for pairs in order:
        assert len({rank for pair in pairs for rank in pair}) == 2 * len(pairs)


@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 8])
def test_all_ranks_get_the_same_topology_with_every_pair(played, ranks):
    machine = catalog("cpu-2-socket", hosts=2)
    names = sorted(machine.endpoints)
    played(lambda a, b: 1.0 + names.index(a) + names.index(b))
    made = run_local(measure, ranks=ranks, topology=machine)
    assert all(one == made[0] for one in made)
    pairs = {frozenset((pair.a, pair.b)): pair for pair in made[0].pairs}
    devices = [place.device for place in sorted(made[0].ranks)]
    assert len(set(devices)) == ranks
    for a, b in combinations(devices, 2):
        pair = pairs[frozenset((a, b))]
        assert pair.latency_us == pytest.approx(1.0 + names.index(a) + names.index(b))
        assert pair.gb_per_s == pytest.approx(1.0)
        assert pair.gb_per_s_source == pair.latency_us_source == "measured"
    assert made[0].source == f"{machine.source}, measured"
    assert len(made[0].facts["ping_pong"]["rank_pairs"]) == ranks * (ranks - 1) // 2


def test_of_ranks_that_share_devices_the_best_pair_counts_and_a_warning_says_it(played):
    machine = catalog("cpu-2-socket")
    first, second = machine.endpoints[:2]
    small = topocomm.Topology(
        "two", "test", tuple(d for d in machine.devices if d.kind != "cpu" or d.id in (first, second)),
        tuple(
            link for link in machine.links if not {link.src, link.dst} & (set(machine.endpoints) - {first, second})
        ),
    )  # fmt: skip
    taken = iter(np.linspace(9.0, 4.0, 6))
    played(lambda a, b: next(taken) if a != b else 0.5)
    found = run_local(measure, ranks=4, topology=small)[0]
    (pair,) = found.pairs
    across = [one for one in found.facts["ping_pong"]["rank_pairs"] if one["latency_us"][1] > 1]
    assert len(across) == 4
    assert pair.latency_us == min(one["latency_us"][1] for one in across)
    assert any("4 ranks on 2 devices" in warning for warning in found.warnings)


def test_what_is_measured_survives_json_and_can_be_planned_on(played):
    played(lambda a, b: 2.0)
    found = run_local(measure, ranks=2)[0]
    again = from_document(json.loads(json.dumps(to_document(found))))
    assert again == found
    assert again.digest == found.digest
    made = topocomm.plan(again, "allreduce", payload_bytes=64)
    assert made.figures.predicted_us >= 2.0


def test_one_rank_is_refused():
    with pytest.raises(TopologyError, match=r"two ranks or more.*mpirun -n 4 topocomm inspect --measure"):
        run_local(measure, ranks=1)


def test_ranks_on_gpus_that_torch_does_not_see_are_refused():
    with pytest.raises(TopologyError, match=r"GPU0, GPU1.*torch sees none on rank 0, 1.*CUDA_VISIBLE_DEVICES="):
        run_local(measure, ranks=2, topology=catalog("dgx-h100"))


def test_threads_measure_in_earnest():
    found = run_local(measure, ranks=2)[0]
    for pair in found.facts["ping_pong"]["rank_pairs"]:
        quartiles = pair["latency_us"]
        assert 0 < quartiles[0] <= quartiles[1] <= quartiles[2] < pair["long_us"][1]
        assert pair["gb_per_s"] > 0


class Pair:
    """Two ranks whose first one's notes count."""

    def allgather_bytes(self, own):
        return [own, own]


@pytest.mark.parametrize(("bytes_per_us", "longest"), [(12.5, 312_500), (0.5, ping_pong.TRIAL_BYTES), (400.0, 8 << 20)])
def test_over_slow_links_fewer_bytes_say_what_eight_mebibytes_take(monkeypatch, bytes_per_us, longest):
    sent = []

    def broadcasts(two, value):
        sent.append(value.nbytes)
        return lambda trips: 60.0 + value.nbytes / bytes_per_us

    monkeypatch.setattr(ping_pong, "broadcasts", broadcasts)
    figures = ping_pong._play(Pair(), None)
    played = ping_pong.Played((0, 1), *(ping_pong.Quartiles(*some) for some in (figures[:3], figures[3:], [nan] * 3)))
    assert played.latency_us == pytest.approx(60.0, rel=0.3)
    assert played.gb_per_s == pytest.approx(bytes_per_us / 1e3, rel=1e-3)
    assert max(sent) == pytest.approx(longest, rel=0.01)


def test_rates_of_slow_links_keep_their_digits():
    assert [ping_pong.significant(rate) for rate in (0.0119342, 0.99999, 12.34567)] == [0.01193, 1.0, 12.346]
