"""Sums in blocks of groups: proved for any groups, three messages between groups in a row, few rows."""

import numpy as np
import pytest

from tests.planning.algorithms.hosts.machines import GONE, groups_of, without
from tests.planning.algorithms.hosts.test_rails_parts import trees_of
from topocomm.planning.algorithms.hosts.rail_blocks import most_blocks_pieces, rail_blocks_allreduce
from topocomm.planning.collectives import Collective
from topocomm.planning.proof.verify import verify


def check(groups, rows, most_pieces, rings=None):
    """It is proved, and every rank evaluates one expression."""
    schedule = rail_blocks_allreduce(groups, rows, most_pieces, rings)
    proof = verify(schedule, Collective("allreduce", groups.starts[-1]))
    assert proof.uniform and proof.complete and proof.each_contribution_once
    return schedule


@pytest.mark.parametrize("count", [*range(2, 18), 33])
@pytest.mark.parametrize("members", [1, 2, 3])
def test_any_number_of_groups(count, members):
    groups = groups_of(*[members] * count)
    for most_pieces in {2, 3, 5, max(1, count - 1)}:
        for inside in (None, [tuple(reversed(range(members)))], trees_of(groups)):
            check(groups, 1000, most_pieces, inside)


@pytest.mark.parametrize("count", [2, 3, 8])
def test_of_few_groups_all_send_each_other_their_parts_whole(count):
    """One message in a row between groups."""
    schedule = check(groups_of(*[4] * count), 1000, 1)
    crossing = schedule.transfers[:, 1] // 4 != schedule.transfers[:, 3] // 4
    assert len(np.unique(schedule.transfers[crossing, 0])) == 1 and crossing.sum() == 4 * count * (count - 1)


@pytest.mark.parametrize(
    "groups", [groups_of(3, 5, 2), groups_of(1, 2, 3, 4, 4), without(5, GONE[0]), without(5, GONE[2])]
)
def test_uneven_groups_and_rails_that_are_gone(groups):
    for most_pieces in (2, 3, 5):
        check(groups, 200, most_pieces)
    check(groups, 1, 3)


def test_three_messages_between_groups_in_a_row_and_few_rows():
    """Of 24 groups in 3 blocks of 8 a group sends 7/8 of the value twice, and its eighth to two more."""
    rows = 4 * 8 * 3
    schedule = check(groups_of(*[4] * 24), rows, 8)
    assert schedule.rounds == 5
    src, dst, chunk = schedule.transfers[:, [1, 3, 5]].T
    crossing = src // 4 != dst // 4
    for ends in (src, dst):
        moved = np.bincount(ends[crossing] // 4, np.array(schedule.chunks)[chunk[crossing], 1])
        assert (moved == rows * (7 + 2 + 7) // 8).all()
    assert len(schedule.transfers) <= 1.1 * 2 * 24 * (4 * 3 + 4) * 8
    assert most_blocks_pieces(groups_of(*[4] * 24), 2 * 24 * 16 * 8) == 8
