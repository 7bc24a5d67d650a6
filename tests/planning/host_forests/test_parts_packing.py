"""Trees of parts: what comes from other hosts and what each member owns, near the best that ports and links allow."""

import numpy as np
import pytest

from tests.planning.host_forests.test_host_packing import loads_of
from topocomm.planning.host_forests.parts_packing import PartsPacking


@pytest.mark.parametrize("reduces", [False, True])
@pytest.mark.parametrize(
    ("system", "hosts", "least_us"), [("mi250x", 7, 201.8), ("mi250x", 2, 171.8), ("mi100-8", 3, 0)]
)
def test_every_share_has_a_way_to_all(system, hosts, least_us, reduces):
    """MI250X: 16 MiB take these at the best, 1.02 times what a port of a die has to receive."""
    loads = loads_of(system, hosts)
    packing = PartsPacking(loads, reduces=reduces)
    best = packing.best()
    if least_us:
        took_us = (16 << 20) / (loads.fastest * 1e3) / sum(weight for weight, _ in best[0])
        assert took_us == pytest.approx(least_us, rel=3e-3)
    for count, made in zip((1, 3), packing.trees((1, 3)), strict=True):
        assert made.shares == count and len(made.pairs) == count * packing.members
        for at, (own, _) in enumerate(made.pairs):
            assert made.own[own][1].root == at // count
        for which, trees in enumerate((made.own, made.others)):
            used = np.bincount([pair[which] for pair in made.pairs], minlength=len(trees))
            assert used.tolist() == [number for number, _ in trees]
            for _, tree in trees:
                assert sorted([tree.root, *(edge.child for edge in tree.edges)]) == list(range(packing.members))


def test_messages_over_one_nic_and_between_its_users_go_one_after_the_other():
    """Dies 0 and 1 share a NIC: what each sends by it and what goes between them add up, in rows of their own."""
    loads = loads_of("mi250x", 3)
    packing = PartsPacking(loads, reduces=False)
    rows = loads.across.shape[1]
    assert packing.limits == rows + 8
    own = [row for row in range(rows, packing.limits) if packing.inside[0, 1, row] > 0]
    assert len(own) == 1 and packing.inside[1, 0, own[0]] == 0
    assert packing.inside[0, 1, own[0]] == loads.inside[0, 1].max()
    assert np.flatnonzero(packing.gates[:, own[0]]).tolist() == [0, 1]
    assert packing.gates[0, own[0]] == loads.across[0].max()


def test_links_as_fast_both_ways_have_one_packing():
    loads = loads_of("mi250x", 2)
    assert np.array_equal(PartsPacking(loads, reduces=True).inside, PartsPacking(loads, reduces=False).inside)
    loads.inside[0, 1] *= 2
    forth, back = (PartsPacking(loads, reduces=reduces).inside for reduces in (False, True))
    assert np.array_equal(back[1, 0, :16], forth[0, 1, :16]) and not np.array_equal(back, forth)
