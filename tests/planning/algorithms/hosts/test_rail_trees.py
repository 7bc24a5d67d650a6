"""Reduces and broadcasts over trees of groups are proved, for any groups and roots, and no port has two messages."""

import re
from itertools import product

import numpy as np
import pytest

from tests.planning.algorithms.hosts.machines import GONE, groups_of, without
from tests.planning.replay import replay, word
from tests.thinning import alternating
from topocomm import catalog
from topocomm.planning.algorithms.hosts.rail_trees import NO_PARENT, ROUNDS, Pace, rail_trees
from topocomm.planning.collectives import Collective
from topocomm.planning.cost.cost_models import Cost
from topocomm.planning.proof.verify import verify
from topocomm.planning.routing.host_turns import host_turns
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.schedule.transforms import sliced, unrolled

COUNTS = [*range(2, 18), 33]
IN_TURNS = {"flat": (False, False), "ring": (True, False), "through": (False, True), "through a ring": (True, True)}
KINDS = (*IN_TURNS, "fork", "fork of a ring", "around a ring")


def rings_of(groups):
    """Around the members, from the last to the first."""
    return [tuple(reversed(range(inside.members))) for inside in groups.insides]


RADICES = (1, 2, 3, 8)
SLOW_ACROSS = Pace((1.0, 6.0), (0.3, 7.0), (0.0, 0.1))


def trees_of(groups, root, kind, **options):
    forked, around = "fork" in kind, "around" in kind
    ring, through = ("ring" in kind, forked) if forked or around else IN_TURNS[kind]
    rings = rings_of(groups) if ring else None
    return rail_trees(groups, root, rings, through=through, forked=forked, around=around, **options)


def check(trees, ranks, slices=1, pace=ROUNDS):
    """Both are proved; every value is in the sum once."""
    reduce, broadcast = (sliced(made(1000, pace), slices, trees.period) for made in (trees.reduce, trees.broadcast))
    verify(reduce, Collective("reduce", ranks, trees.root))
    verify(broadcast, Collective("broadcast", ranks, trees.root))
    for text in replay(reduce).values():
        assert sorted(re.findall("<[^>]*>", text)) == sorted(map(word, range(ranks)))
    assert set(replay(broadcast).values()) == {word(trees.root)}
    assert len(reduce.transfers) == len(broadcast.transfers) == (ranks - 1) * len(reduce.chunks)
    return reduce, broadcast


def most_in_a_round(schedule):
    """Messages that a rank sends, and receives, in one round of the whole pipeline."""
    table = unrolled(schedule).transfers
    messages = np.unique(table[:, [0, 1, 3]], axis=0)
    return max(np.unique(messages[:, [0, side]], axis=0, return_counts=True)[1].max() for side in (1, 2))


@pytest.mark.parametrize(("count", "members"), alternating(COUNTS, [1, 2, 3, 8], 4, pytest.mark.long))
@pytest.mark.parametrize("kind", KINDS)
def test_any_number_of_groups_and_any_root(count, members, kind):
    groups = groups_of(*[members] * count)
    ranks = groups.starts[-1]
    for root, radix in zip({0, ranks // 2, ranks - 1}, RADICES[count % 2 :], strict=False):
        check(trees_of(groups, root, kind, radix=radix), ranks)


@pytest.mark.parametrize("kind", IN_TURNS)
@pytest.mark.parametrize("shape", [(2, 8), (5, 4), (8, 2), (9, 3)])
def test_no_port_has_two_messages_in_a_round(shape, kind):
    groups = groups_of(*[shape[1]] * shape[0])
    for root, pace, radix in product((0, groups.starts[-1] - 2), (ROUNDS, SLOW_ACROSS), RADICES):
        trees = trees_of(groups, root, kind, radix=radix)
        for schedule in check(trees, groups.starts[-1], slices=5, pace=pace):
            assert most_in_a_round(schedule) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_at_once_slices_are_a_round_apart(kind):
    groups = groups_of(*[4] * 6)
    turned, at_once = trees_of(groups, 3, kind), trees_of(groups, 3, kind, at_once=True)
    assert at_once.period == 1 < turned.period
    assert (at_once.parents == turned.parents).all()
    schedule, _ = check(at_once, 24, slices=3)
    assert schedule.rounds < turned.reduce(1000).rounds


@pytest.mark.parametrize("sizes", [(2, 1), (3, 5), (8, 7, 8), (1, 2, 3, 4), (4, 4, 3, 4, 4)])
@pytest.mark.parametrize("kind", KINDS)
def test_uneven_groups(sizes, kind):
    groups = groups_of(*sizes)
    for root in range(groups.starts[-1]):
        check(trees_of(groups, root, kind), groups.starts[-1], slices=2)


@pytest.mark.parametrize("gone", GONE)
@pytest.mark.parametrize("kind", KINDS)
def test_groups_that_lack_a_rail(gone, kind):
    groups = without(5, gone)
    for root in (0, 3, groups.starts[-1] - 1):
        check(trees_of(groups, root, kind), groups.starts[-1])


@pytest.mark.parametrize(("kind", "chunks"), [("flat", 16), ("ring", 8), ("through", 2)])
def test_a_rank_moves_one_value_and_between_groups_one_part(kind, chunks):
    """The root receives one value inside its group and one part; its own part adds a third of that to others there."""
    groups, rows = groups_of(*[4] * 7), 4 * 4 * 3 * 100
    trees = trees_of(groups, 9, kind)
    assert len(trees.parents) == chunks and (trees.parents[:, 9] == NO_PARENT).all()
    schedule = trees.reduce(rows)
    src, dst, chunk = schedule.transfers[:, [1, 3, 5]].T
    size, across = np.array(schedule.chunks)[chunk, 1], src // 4 != dst // 4
    received = np.bincount(dst, size * ~across, minlength=28)
    assert received.max() <= rows
    part = rows if kind == "through" else rows // 4
    for ends in (src, dst):
        assert np.bincount(ends, size * across, minlength=28).max() <= part


@pytest.mark.parametrize("root", [0, 5, 11, 47])
def test_a_fork_sends_a_value_on_at_once_and_joins_halves_of_a_group_once(root):
    """From the member that it enters straight to the one that it leaves; members have two children at most."""
    trees = trees_of(groups_of(*[8] * 6), root, "fork")
    for parents, across in zip(trees.parents, trees.across, strict=True):
        inside = (parents != NO_PARENT) & ~across
        child, parent = np.flatnonzero(inside), parents[inside]
        assert np.bincount(parent).max() == 2
        halves = np.stack([child // 4, parent // 4], 1)
        assert np.unique(halves[halves[:, 0] != halves[:, 1]] // 2, axis=0, return_counts=True)[1].tolist() == [1] * 6
        for enters in np.unique(parents[across]):
            assert enters == root or (across[parents[enters]] or parents[enters] == root)


@pytest.mark.parametrize("name", ["reduce", "broadcast"])
def test_while_a_message_is_on_its_way_others_pass(name):
    """Slices as long as latencies: rounds a turn apart would leave ports idle, turns of later periods do not."""
    groups, slices = groups_of(*[4] * 9), 16
    machine = catalog("dgx-h100", hosts=9)
    ends = [end for end in machine.endpoints if int(end.rsplit("GPU")[-1]) < 4]
    trees = trees_of(groups, 0, "flat", radix=4)
    rows = len(trees.parents) * slices * 1000
    pace = Pace((rows * 4 / slices / 450e3, rows * 4 / slices / 50e3), (0.6, 5.0))

    def takes_us(pace):
        schedule = sliced(getattr(trees, name)(rows, pace), slices, trees.period)
        rules = {"row_bytes": 4, "port_model": "loggp", "collective": Collective(name, 36)}
        return Cost(schedule, ends, PathFinder(machine), **rules).predicted_us

    paced_us = takes_us(pace)
    assert paced_us < 0.8 * takes_us(ROUNDS)
    assert 0.8 <= paced_us / trees.predicted_us(name, pace, slices) <= 1.01


def test_rows_that_are_fewer_than_chunks():
    trees = trees_of(groups_of(3, 3, 3), 4, "flat")
    verify(trees.reduce(2), Collective("reduce", 9, 4))
    verify(trees.broadcast(2), Collective("broadcast", 9, 4))


@pytest.mark.parametrize("root", [0, 5])
@pytest.mark.parametrize(("system", "count"), [("v100-4", 3), ("v100-4", 8), ("dgx-2", 2)])
def test_messages_in_turns_of_their_host_are_proved_and_as_long_as_they_are_held(system, count, root):
    machine = catalog(system, hosts=count)
    ends = tuple(device.id for device in machine.devices if device.kind == "gpu")
    paths, groups = PathFinder(machine), groups_of(*[len(ends) // count] * count)
    trees = rail_trees(groups, root, None, radix=1)
    turns = host_turns(groups, ends, paths, 1.0 - np.eye(groups.members(0)), trees.colours, 1.0)
    made = trees.in_turns(turns)
    check(made, len(ends))
    used = made.parents != NO_PARENT
    assert made.period == turns.period and (made.held[used] >= 1).all() and (made.turns[used] < made.period).all()
    assert set(made.held[made.across & used].tolist()) == {turns.held_across}


@pytest.mark.parametrize("root", [0, 9])
def test_both_ways_around_a_ring_links_have_half_of_the_parts(root):
    """Eight parts, four each way; an owner sends none of its own on, but where all go to the root it does."""
    machine = catalog("dgx-1-v100", hosts=2)
    paths, groups, ring = PathFinder(machine), groups_of(8, 8), (0, 3, 2, 1, 5, 6, 7, 4)
    trees = rail_trees(groups, root, [ring], radix=1, around=True)
    inside = trees.sent_inside(8)
    edges = {(a, b) for a, b in zip(ring, (*ring[1:], 0), strict=True)}
    assert {(a, b) for a, b in np.argwhere(inside).tolist()} == edges | {(b, a) for a, b in edges}
    assert set(inside[inside > 0].tolist()) == {3.0, 4.0}
    turns = host_turns(groups, machine.endpoints, paths, inside, trees.colours, 1.0)
    made = trees.in_turns(turns)
    check(made, 16, slices=3)
    used = made.parents != NO_PARENT
    assert (made.held[used] >= 1).all() and (made.turns[used] < made.period).all()
    assert made.held[used & ~made.across].max() == round(4 / 50 * 12.5 * turns.held_across)
