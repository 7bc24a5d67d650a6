"""Packings with fewer trees: little is lost, and no root has more than it may."""

import pytest

from tests.planning.forests.machines import network, solved
from topocomm.planning.forests.linear_program.packing import pack
from topocomm.planning.forests.linear_program.pricers import Gathers, OutTrees
from topocomm.planning.forests.linear_program.symmetry import no_symmetry
from topocomm.planning.forests.pruning import prune


@pytest.mark.parametrize("case", range(0, 32, 6))
def test_little_is_lost_and_nothing_more_can_go(case):
    symmetry = no_symmetry(network(solved()[case][0]))
    ranks = symmetry.network.ends
    for pricer in (OutTrees(symmetry, 0), Gathers(symmetry, [1 / ranks] * ranks)):
        packing = pack(pricer, 1e-6, 600)
        for loss in (1e-4, 0.05):
            parts = prune(pricer, packing.parts, symmetry, most=None, loss=loss)
            assert len(parts) <= len(packing.parts)
            assert pricer.total(parts) >= pricer.total(packing.parts) * (1 - loss) * (1 - 1e-9)


@pytest.mark.parametrize("most", [1, 2, 3])
def test_every_root_has_at_most_so_many(most):
    symmetry = no_symmetry(network(solved()[3][0]))
    ranks = symmetry.network.ends
    pricer = Gathers(symmetry, [1 / ranks] * ranks)
    parts = prune(pricer, pack(pricer, 1e-6, 600).parts, symmetry, most=most, loss=0.0)
    roots = [column.pair.root for _, column in parts]
    assert set(roots) == set(range(ranks)) and max(map(roots.count, roots)) <= most


def test_more_may_be_lost_for_fewer_trees():
    symmetry = no_symmetry(network(solved()[28][0]))
    pricer = OutTrees(symmetry, 0)
    parts = pack(pricer, 1e-6, 600).parts
    counts = [len(prune(pricer, parts, symmetry, most=None, loss=loss)) for loss in (0.0, 0.1, 0.5)]
    assert counts == sorted(counts, reverse=True) and counts[2] < counts[0]
