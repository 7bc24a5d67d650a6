"""Equal shares on the best trees keep ports and links about as little busy as the best shares do."""

import numpy as np
import pytest

from tests.planning.host_forests.test_host_packing import loads_of
from topocomm.planning.host_forests.parts_packing import PartsPacking
from topocomm.planning.host_forests.rooted_packing import RootedPacking


def packings():
    loads = loads_of("mi250x", 3)
    return [RootedPacking(loads, 2, reduces=True), PartsPacking(loads, reduces=False)]


@pytest.mark.parametrize("packing", packings(), ids=["rooted", "parts"])
def test_the_best_trees_fill_the_busiest_and_cost_what_it_is_worth(packing):
    best = packing.best()
    totals = [sum(weight for weight, _ in shares) for shares in best]
    assert len(best) == packing.kinds and totals == pytest.approx([totals[0]] * packing.kinds, rel=1e-5)
    load = sum(weight * packing.load(tree, kind) for kind, shares in enumerate(best) for weight, tree in shares)
    assert load.max() == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("packing", packings(), ids=["rooted", "parts"])
def test_rounded_shares_move_to_where_all_are_least_busy(packing):
    """One per cent of 32 shares more on each of two kinds is less than rounding alone costs, 7 per cent of 8."""
    best = packing.best()
    least = 1 / sum(weight for weight, _ in best[0])
    for count, most in ((8, 1.25), (32, 1.12)):
        counts = [count] * packing.kinds
        made = packing.rounded(best, counts)
        assert [sum(number for number, _ in kind) for kind in made] == counts
        for kind, shares in zip(made, best, strict=True):
            assert {id(tree) for _, tree in kind} <= {id(tree) for _, tree in shares}
        load = sum(n * packing.load(tree, kind) / count for kind, own in enumerate(made) for n, tree in own)
        assert 1 - 1e-5 <= load.max() / least <= most


def test_no_tree_no_shares():
    loads = loads_of("mi250x", 2)
    loads.inside[:, 3] = np.inf
    assert PartsPacking(loads, reduces=False).best() == [] and PartsPacking(loads, reduces=False).trees((1, 2)) == []
