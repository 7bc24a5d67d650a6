"""Every algorithm of every collective on strings: what each rank holds in the end."""

import pytest

from tests.concatenation import CONCAT
from tests.machines import switch
from tests.planning.replay import builds, collective_of, expected, replay, same
from topocomm.planning.collectives import COLLECTIVES, IN_PARTS, ROOTED
from topocomm.planning.proof.verify import verify

RANKS = [*range(1, 18), 31, 33, 64]


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
    if name == "alltoall":
        parts = [rows * (src + 1) for src in range(len(parts)) for rows in (*parts[src:], *parts[:src])]
    ranks = len(parts) if name != "alltoall" else round(len(parts) ** 0.5)
    schedules = check(collective_of(name, ranks, parts=parts), sum(parts))
    for schedule in schedules.values():
        assert all(rows for _, rows in schedule.chunks), "nothing is sent for a part of no rows"


@pytest.mark.parametrize("root", range(7))
def test_every_root(root):
    for name in ROOTED:
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
