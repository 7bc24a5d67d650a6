"""A hop leaves at its first turn after what it has is there; turns of a period are rounds in their order."""

from unittest.mock import patch

import numpy as np
import pytest

from topocomm.native._native import leave_in_turn
from topocomm.planning.scan_trees.hop_clock import SAME, Clock, _Hops, hop_rounds, least_takes, phased, steady
from topocomm.planning.scan_trees.rank_trees import NO_RANK, Nodes, ScanTrees, straight

CHAIN, STAR = np.array([[1, 2, NO_RANK]]), np.array([[1, NO_RANK, 1]])


def test_a_hop_takes_a_period_of_the_steady_clock():
    rounds = hop_rounds(Nodes(CHAIN), straight(CHAIN), steady(straight(CHAIN)))
    assert rounds.up[:2].ravel().tolist() == [0, 1] and (rounds.period, rounds.slice_takes) == (1, 2.0)


def test_nothing_goes_down_before_all_is_up():
    """Three groups of two along a chain of their last ranks, which tell the others what comes before the group."""
    trees = straight(np.array([[1, 3, 3, 5, 5, NO_RANK]]))
    rounds = hop_rounds(Nodes(trees.parents), trees, phased(trees))
    assert rounds.up[:5, 0].tolist() == [0, 1, 0, 2, 0]
    assert rounds.down[[2, 4], 0].tolist() == [3, 3]
    assert rounds.period == 4


def test_roots_tell_each_other_between_the_two():
    """Three groups of two, whose last rank tells those of all later groups, and then the first of its own."""
    trees = straight(np.array([[1, NO_RANK, 3, NO_RANK, 5, NO_RANK]]))
    rounds = hop_rounds(Nodes(trees.parents), trees, phased(trees))
    assert rounds.up[[0, 2, 4], 0].tolist() == [0] * 3 and rounds.across.tolist() == [1] * 3
    assert rounds.down[[2, 4], 0].tolist() == [2, 2] and rounds.period == 3


def test_a_root_waits_for_its_turn_and_its_tree_for_all_earlier_roots():
    """Rank 0 sends rank 2 at 0.5 and the last at 0.7, rank 2 sends at 0.5: rank 3 hears when both have arrived."""
    trees = straight(np.array([[NO_RANK, 2, NO_RANK, 4, NO_RANK]]))
    up, takes = np.zeros((1, 5, 1)), np.full((1, 5, 1), 0.1)
    clock = Clock(1.0, up, up + 0.75, takes, takes, np.array([[0.5, 0.7]]), np.array([[0.1, 0.2]]))
    rounds = hop_rounds(Nodes(trees.parents), trees, clock)
    assert rounds.up[1, 0] == 0 and rounds.period == 4  # turns 0, 0.5, 0.7 and 0.75
    assert rounds.across.tolist() == [1, 2, 1] and rounds.down[[1, 3], 0].tolist() == [3, 7]
    assert rounds.slice_takes == 1.85


def clock_of(turns, takes, period=1.0):
    up = np.array(turns).reshape(1, 3, -1)
    return Clock(period, up, np.zeros_like(up), np.full(up.shape, takes), np.full(up.shape, takes))


def test_a_message_waits_for_its_turn():
    """Rank 1 sends at 0.25 of a period: what arrives at 0.5 goes a period later, what arrives at 0.2 at once."""
    late, soon = (hop_rounds(Nodes(CHAIN), straight(CHAIN), clock_of([0.0, 0.25, 0.0], it)) for it in (0.5, 0.2))
    assert late.up[:2].ravel().tolist() == [0, 3] and soon.up[:2].ravel().tolist() == [0, 1]
    assert late.period == soon.period == 2
    assert late.slice_takes == 1.75 and soon.slice_takes == 0.45


def test_what_arrives_at_its_turn_need_not_wait():
    clock = clock_of([0.1, 0.1 + 0.2, 0.0], 0.2)
    assert hop_rounds(Nodes(CHAIN), straight(CHAIN), clock).up[:2].ravel().tolist() == [0, 1]


def test_the_next_sibling_waits_for_what_comes_before_it():
    """The centre of a star tells rank 2 what it got from rank 0."""
    rounds = hop_rounds(Nodes(STAR), straight(STAR), steady(straight(STAR)))
    assert rounds.up[0, 0] == 0 and rounds.down[2, 0] == 1


def test_hops_over_relays_follow_each_other():
    relays = np.array([[[2], [NO_RANK], [NO_RANK]]])
    of = ScanTrees(CHAIN, relays, relays)
    assert hop_rounds(Nodes(CHAIN), of, steady(of)).up[:2].tolist() == [[0, 1], [2, 2]]


def test_a_slice_takes_at_least_the_longest_way_of_its_messages():
    """Without turns that is what it takes; hops that a message has not take nothing."""
    for takes in (0.2, 0.5):
        clock = clock_of([0.0, 0.25, 0.0], takes)
        assert (
            least_takes(straight(CHAIN), clock)
            == 2 * takes
            <= hop_rounds(Nodes(CHAIN), straight(CHAIN), clock).slice_takes
        )
    relays = np.array([[[2, NO_RANK], [NO_RANK, NO_RANK], [NO_RANK, NO_RANK]]])
    of = ScanTrees(CHAIN, relays, relays)
    assert least_takes(of, steady(of)) == hop_rounds(Nodes(CHAIN), of, steady(of)).slice_takes == 3.0
    assert least_takes(straight(STAR), steady(straight(STAR))) == 1.0


@pytest.mark.parametrize("seed", range(20))
def test_both_ways_let_messages_leave_alike(seed):
    """Bit by bit: with relays, in any order, at turns that are nearly met, and some never."""
    rng = np.random.default_rng(seed)
    relays = np.sort(rng.integers(-1, 3, (2, 9, 3)), axis=2)[:, :, ::-1]
    turns, takes = rng.integers(0, 4, (2, 9, 4)) / 4, rng.random((2, 9, 4))
    one, other = (_Hops(relays, turns, takes, 0.7) for _ in range(2))
    nodes = rng.permutation(18)[: rng.integers(1, 19)]
    ready = np.where(
        rng.random(len(nodes)) < 0.5, turns[0, 0, 0] + 0.7 * rng.integers(0, 5), rng.random(len(nodes)) * 9
    )
    one.leave(nodes, ready)
    other.leave_plainly(nodes, ready)
    assert one.slice.tolist() == other.slice.tolist() and one.there.tobytes() == other.there.tobytes()
    third = _Hops(relays, turns, takes, 0.7)
    with patch.dict("sys.modules", {"topocomm.native._native": None}):
        third.leave(nodes, ready)
    assert third.slice.any() and third.there.tobytes() == other.there.tobytes()


def test_columns_that_do_not_fit_each_other_are_refused():
    """Each would be read or written past its end."""

    def columns():
        ints = np.array([1]), np.array([2.5]), np.array([1, 0])
        return [*ints, np.zeros((2, 2)), np.ones((2, 2)), np.array([1.0, SAME]), np.zeros((2, 2), int), np.zeros(2)]

    leave_in_turn(*(good := columns()))
    assert good[-1].tolist() == [0.0, 4.0] and good[-2].tolist() == [[0, 0], [3, 3]]
    for which in range(8):
        wrong = columns()
        wrong[which] = wrong[which][..., :-1].copy()
        with pytest.raises(ValueError, match="do not fit each other"):
            leave_in_turn(*wrong)
    for which, value in [(0, 2), (0, -1), (2, 2), (2, -1)]:
        wrong = columns()
        wrong[which][0] = value
        with pytest.raises(ValueError, match="do not fit each other"):
            leave_in_turn(*wrong)
