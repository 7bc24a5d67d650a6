"""Trees of reduces and broadcasts keep every port and link about as little busy as the linear program allows."""

import numpy as np
import pytest

from tests.planning.host_forests.test_host_packing import loads_of
from topocomm.planning.host_forests.rooted_packing import RootedPacking


def busiest(packing, made):
    held = sum(number * packing.load(tree, 0) for number, tree in made.others)
    held = held + sum(number * packing.load(tree, 1) for number, tree in made.own)
    return float(held.max()) / made.shares


def check(made, count, root):
    assert made.shares == len(made.pairs) == count
    for which, kind in enumerate((made.own, made.others)):
        used = np.bincount([pair[which] for pair in made.pairs], minlength=len(kind))
        assert used.tolist() == [number for number, _ in kind]
        for _, tree in kind:
            assert sorted([tree.root, *(edge.child for edge in tree.edges)]) == list(range(8))
    assert all(tree.root == root for _, tree in made.own)


@pytest.mark.parametrize("reduces", [True, False])
@pytest.mark.parametrize(("system", "root", "most"), [("mi250x", 0, 1.07), ("mi250x", 5, 1.07), ("mi100-8", 3, 1.01)])
def test_shares_on_trees_are_near_the_best(system, root, most, reduces):
    """MI250X: 16 MiB take 225.4 us at the best; MI100: the value passes the bus at 16 GB/s once."""
    loads = loads_of(system, 2)
    packing = RootedPacking(loads, root, reduces=reduces)
    least = {"mi250x": 225.4e-6 * loads.fastest * 1e9 / (16 << 20), "mi100-8": loads.fastest / 16}[system]
    for count, made in zip((8, 32), packing.trees((8, 32)), strict=True):
        check(made, count, root)
        assert 1 - 1e-2 <= busiest(packing, made) / least <= most * (1.15 if count == 8 else 1)


@pytest.mark.parametrize("reduces", [True, False])
@pytest.mark.parametrize(("system", "root", "most"), [("mi250x", 0, 1.33), ("mi250x", 5, 1.33), ("mi100-8", 3, 1.15)])
def test_low_trees_have_a_share_each(system, root, most, reduces):
    loads = loads_of(system, 2)
    packing = RootedPacking(loads, root, reduces=reduces, neighbours=False)
    least = {"mi250x": 220.3e-6 * loads.fastest * 1e9 / (16 << 20), "mi100-8": loads.fastest / 16}[system]
    (made,) = packing.low_trees(8)
    check(made, 8, root)
    assert len(made.own) == len(made.others) == 8
    assert 1 - 1e-6 <= busiest(packing, made) / least <= most


@pytest.mark.parametrize("kind", [0, 1])
def test_neighbours_that_share_a_nic_count_in_other_hosts(kind):
    """Dies 0 and 1: in the root's host, which passes nothing on, either may send to the other meanwhile."""
    loads = loads_of("mi250x", 2)
    packing, without = (RootedPacking(loads, 0, reduces=True, neighbours=each) for each in (True, False))
    rows = loads.across.shape[1]
    assert packing.rows == rows + 8 and packing.limits == 2 * rows + 8 and without.limits == 2 * rows
    held = packing.edge(0, 1, kind)
    assert np.count_nonzero(held[rows : packing.rows]) == (kind == 0)
    assert np.array_equal(np.delete(held, np.arange(rows, packing.rows)), without.edge(0, 1, kind))


def test_a_root_receives_what_passes_the_gates():
    """A port of the root's host has what enters it, of a reduce to receive, of a broadcast to send."""
    loads = loads_of("mi250x", 2)
    reduce_, broadcast = (RootedPacking(loads, 0, reduces=reduces) for reduces in (True, False))
    rows = reduce_.rows
    send, receive = np.arange(0, 16, 2), np.arange(1, 16, 2)
    assert (reduce_.gates[:, :rows][:, [*send, *receive]].sum(axis=1) > 0).all()
    assert not reduce_.gates[:, rows + send].any() and reduce_.gates[:, rows + receive].any()
    assert broadcast.gates[:, rows + send].any() and not broadcast.gates[:, rows + receive].any()


def test_members_without_routes_have_no_trees():
    loads = loads_of("mi250x", 2)
    loads.inside[2], loads.inside[:, 2] = np.inf, np.inf
    assert RootedPacking(loads, 0, reduces=True).trees((4,)) == []
    assert RootedPacking(loads, 0, reduces=True).low_trees(4) == []
    closed = loads_of("mi250x", 2)
    closed.across[:] = np.inf
    assert RootedPacking(closed, 0, reduces=True).trees((4,)) == []
