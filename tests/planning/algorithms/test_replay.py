"""Every algorithm of every collective on strings: what each rank holds in the end, and in how many rounds."""

from math import ceil, log2

import pytest

from tests.concatenation import CONCAT
from tests.machines import switch
from tests.planning.replay import builds, collective_of, expected, replay, same
from topocomm.planning.collectives import COLLECTIVES, IN_PARTS
from topocomm.planning.proof.verify import verify

RANKS = [*range(1, 18), 31, 32, 33, 64, 100]


def check(collective, rows):
    """Prove and replay every algorithm; their schedules by name."""
    schedules = {name: build() for name, build in builds(switch(collective.ranks), collective, rows).items()}
    for name, schedule in schedules.items():
        proof = verify(schedule, collective)
        assert schedule.rows == rows, name
        assert same(replay(schedule), expected(collective, schedule.chunks), proof.order_kept), name
    return schedules


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("name", COLLECTIVES)
def test_every_rank_holds_what_it_must(name, ranks):
    check(collective_of(name, ranks, root=ranks // 3, rows=2 * ranks + 1), 2 * ranks + 1)


@pytest.mark.parametrize("rows", [0, 1, 2, 5])
@pytest.mark.parametrize("name", COLLECTIVES)
def test_fewer_rows_than_ranks(name, rows):
    for ranks in (1, 4, 7, 8):
        check(collective_of(name, ranks, root=ranks - 1, rows=rows), rows)


@pytest.mark.parametrize(
    "parts", [(5,), (0, 3), (3, 0), (1, 0, 4), (0, 0, 9, 0, 0), (7, 1, 0, 0, 2, 5, 1, 0, 3)], ids=str
)
@pytest.mark.parametrize("name", IN_PARTS)
def test_uneven_parts(name, parts):
    schedules = check(collective_of(name, len(parts), parts=parts), sum(parts))
    for schedule in schedules.values():
        assert all(rows for _, rows in schedule.chunks), "nothing is sent for a part of no rows"


@pytest.mark.parametrize("root", range(7))
def test_every_root(root):
    for name in ("reduce", "broadcast"):
        check(collective_of(name, 7, root=root), 16)


@pytest.mark.parametrize("ranks", [2, 3, 8, 13])
@pytest.mark.parametrize("name", COLLECTIVES)
def test_an_operator_that_does_not_commute_gets_algorithms_that_keep_order(name, ranks):
    collective = collective_of(name, ranks, rows=40)
    offered = builds(switch(ranks), collective, 40, CONCAT)
    assert len(offered) >= 2
    for build in offered.values():
        schedule = build()
        assert verify(schedule, collective, keep_order=True).order_kept
        assert replay(schedule) == expected(collective, schedule.chunks)


ROUNDS = {
    ("allreduce", "flat"): lambda p: p - 1,
    ("allreduce", "direct"): lambda p: 2 * (p - 1),
    ("allreduce", "ring"): lambda p: 2 * (p - 1),
    ("allreduce", "rabenseifner"): lambda p: 2 * int(log2(p)) + 2 * (p & (p - 1) > 0),
    ("reduce", "binomial"): lambda p: ceil(log2(p)),
    ("broadcast", "scatter-ring"): lambda p: ceil(log2(p)) + p - 1,
    ("broadcast", "scatter-dissemination"): lambda p: 2 * ceil(log2(p)),
    ("allgather", "flat"): lambda p: p - 1,
    ("allgather", "ring"): lambda p: p - 1,
    ("allgather", "dissemination"): lambda p: ceil(log2(p)),
    ("allgather", "doubling"): lambda p: int(log2(p)) + 2 * (p & (p - 1) > 0),
    ("reduce_scatter", "flat"): lambda p: p - 1,
    ("reduce_scatter", "ring"): lambda p: p - 1,
    ("reduce_scatter", "dissemination"): lambda p: ceil(log2(p)),
    ("reduce_scatter", "halving"): lambda p: int(log2(p)) + 2 * (p & (p - 1) > 0),
    ("scan", "flat"): lambda p: p - 1,
    ("scan", "chain"): lambda p: p - 1,
    ("scan", "doubling"): lambda p: ceil(log2(p)),
    ("exscan", "flat"): lambda p: p - 1,
    ("exscan", "chain"): lambda p: p - 1,
    ("exscan", "doubling"): lambda p: ceil(log2(p)),
    ("exscan", "1-2-3-doubling"): lambda p: ceil(log2(p - 1) + log2(4 / 3) - 1e-12) if p > 2 else 1,
}


@pytest.mark.parametrize(("name", "algorithm"), ROUNDS, ids=" ".join)
def test_rounds_are_those_documented_and_one_port_is_enough(name, algorithm):
    for ranks in RANKS[1:-1]:
        schedule = builds(switch(ranks), collective_of(name, ranks, rows=ranks), ranks)[algorithm]()
        assert schedule.rounds == ROUNDS[name, algorithm](ranks), ranks
        ends = switch(ranks).endpoints
        collective = collective_of(name, ranks, rows=ranks)
        assert verify(schedule, collective, endpoints=ends, ports=1, serialised=False).ports_respected


@pytest.mark.parametrize("ranks", [2, 5, 8, 16])
def test_long_payloads_are_sent_no_more_than_once_each_way(ranks):
    """Rows that the busiest rank sends, of 16 per rank: (P-1)/P of the payload, twice that for an allreduce."""
    rows = 16 * ranks
    once = ("flat", "ring", "dissemination")
    for name, factor, algorithms in (
        ("allgather", 1, once),
        ("reduce_scatter", 1, once),
        ("allreduce", 2, ("direct", "ring")),
    ):
        offered = builds(switch(ranks), collective_of(name, ranks, rows=rows), rows)
        for algorithm in algorithms:
            schedule = offered[algorithm]()
            sent = [0] * ranks
            for move in schedule.transfer_list():
                sent[move.src] += schedule.chunks[move.chunk][1]
            assert max(sent) == factor * 16 * (ranks - 1), (name, algorithm)
