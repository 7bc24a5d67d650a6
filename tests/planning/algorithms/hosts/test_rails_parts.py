"""Every rank gets every value once, for any groups; what goes between groups is the least there is."""

import re
from itertools import pairwise

import numpy as np
import pytest

from tests.planning.algorithms.hosts.machines import GONE, groups_of, without
from tests.planning.replay import replay, word
from tests.thinning import alternating
from topocomm.planning.algorithms.hosts.rails_parts import (
    MemberTrees,
    common_rails,
    fits_parts,
    rails_allgather,
    rails_allreduce_in_parts,
    rails_reduce_scatter,
    transfer_count,
)
from topocomm.planning.collectives import Collective
from topocomm.planning.proof.verify import verify
from topocomm.planning.schedule.transforms import sliced

COUNTS = [*range(1, 18), 33]


def rings_of(groups):
    """Around the members, from the last to the first."""
    return [tuple(reversed(range(inside.members))) for inside in groups.insides]


def trees_of(groups):
    """Two chains from every owner, to the last member and to the first."""
    tables, longest = [], 0
    for inside in groups.insides:
        count, rows = inside.members, []
        for owner in range(count):
            up, down = list(range(owner, count)), list(range(owner, -1, -1))
            rows += [(step, owner, *ends) for way in (up, down) for step, ends in enumerate(pairwise(way))]
        tables.append(np.array(sorted(rows), np.int64).reshape(-1, 4))
        longest = max(longest, count - 1)
    return MemberTrees(longest, tuple(tables))


def check(groups, schedule, slices=1):
    ranks = groups.starts[-1]
    verify(sliced(schedule, slices, 1), Collective("allreduce", ranks))
    spelled = replay(sliced(schedule, slices, 1))
    assert spelled.keys() == {(rank, chunk) for rank in range(ranks) for chunk in range(len(schedule.chunks))}
    for text in spelled.values():
        assert sorted(re.findall("<[^>]*>", text)) == sorted(map(word, range(ranks)))


@pytest.mark.parametrize(("count", "members"), alternating(COUNTS, [1, 2, 3, 8], 4, pytest.mark.long))
def test_any_number_of_groups(count, members):
    groups = groups_of(*[members] * count)
    if groups.starts[-1] < 2:
        return
    for pieces in (1, 3, 16):
        for inside in (None, rings_of(groups), trees_of(groups)):
            schedule = rails_allreduce_in_parts(groups, 1000, pieces, inside)
            check(groups, schedule)
            assert len(schedule.transfers) <= transfer_count(groups, pieces)


@pytest.mark.parametrize("slices", [2, 5])
def test_in_slices(slices):
    groups = groups_of(3, 3, 3, 3, 3)
    for inside in (None, rings_of(groups), trees_of(groups)):
        check(groups, rails_allreduce_in_parts(groups, 1000, 16, inside), slices)


@pytest.mark.parametrize("sizes", [(2, 1), (3, 5), (8, 7, 8), (1, 2, 3, 4), (4, 4, 3, 4, 4)])
def test_uneven_groups(sizes):
    groups = groups_of(*sizes)
    assert len(common_rails(groups)) == min(sizes)
    for rings in (None, rings_of(groups)):
        check(groups, rails_allreduce_in_parts(groups, 77, 16, rings))


@pytest.mark.parametrize("gone", GONE)
def test_groups_that_lack_a_rail(gone):
    groups = without(5, gone)
    assert len(common_rails(groups)) < 8
    for rings in (None, rings_of(groups)):
        check(groups, rails_allreduce_in_parts(groups, 200, 16, rings))


@pytest.mark.parametrize("count", [2, 3, 4, 7, 16])
def test_the_fewest_rows_go_between_groups(count):
    """Of each rank 2 (H-1)/H of its part; with fewer pieces than groups not many more."""
    groups, rows = groups_of(*[4] * count), 4 * count * 10

    def between(pieces):
        schedule = rails_allreduce_in_parts(groups, rows, pieces)
        src, dst, chunk = schedule.transfers[:, [1, 3, 5]].T
        sent = np.array(schedule.chunks)[chunk, 1] * (src // 4 != dst // 4)
        return np.bincount(src, sent, minlength=4 * count)

    assert (between(count) == 2 * (count - 1) / count * rows / 4).all()
    assert between(1).max() <= 2 * (count - 1).bit_length() * rows / 4


def test_rows_that_are_fewer_than_pieces():
    groups = groups_of(3, 3, 3)
    check(groups, rails_allreduce_in_parts(groups, 2, 16))


@pytest.mark.parametrize(("count", "radix"), alternating(COUNTS, [3, 4, 5, 16, 64], 4, pytest.mark.long))
def test_any_radix(count, radix):
    """As many rounds between groups as powers of the radix make of the groups, whatever their number."""
    groups = groups_of(*[2] * count)
    if count < 2:
        return
    for pieces in (1, 3, count):
        schedule = rails_allreduce_in_parts(groups, 1000, pieces, None, radix)
        check(groups, schedule)
        between, reached = 0, 1
        while reached < count:
            between, reached = between + 1, reached * radix
        assert len(np.unique(schedule.transfers[:, 0])) == 2 + 2 * between
        assert len(schedule.transfers) <= transfer_count(groups, pieces, radix)


@pytest.mark.parametrize(("count", "members"), alternating(COUNTS, [1, 2, 3, 8], 4, pytest.mark.long))
@pytest.mark.parametrize("radix", [2, 3, 64])
def test_parts_reach_their_owners_and_come_from_them(count, members, radix):
    groups = groups_of(*[members] * count)
    ranks = groups.starts[-1]
    if ranks < 2:
        return
    parts = tuple(1 + 7 * rank % 5 for rank in range(ranks))
    assert fits_parts(groups)
    for rings in (None, rings_of(groups), trees_of(groups)):
        for name, made in (("reduce_scatter", rails_reduce_scatter), ("allgather", rails_allgather)):
            schedule = made(groups, parts, rings, radix)
            collective = Collective(name, ranks, parts=parts)
            verify(schedule, collective)
            verify(sliced(schedule, 1, 1), collective)
            src, dst, chunk = schedule.transfers[:, [1, 3, 5]].T
            rows = np.array(schedule.chunks)[chunk, 1] * (src // members != dst // members)
            assert rows.sum() == (count - 1) * sum(parts)


def test_ranks_without_a_rail_own_no_part():
    assert not fits_parts(groups_of(3, 2))
    assert not fits_parts(without(5, GONE[0]))
