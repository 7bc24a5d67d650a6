"""A limited number of trees, exchanged for better ones: against all choices from the pool."""

from itertools import combinations

import pytest

from tests.planning.forests.machines import network, solved
from topocomm.planning.forests.column_exchange import exchange_columns
from topocomm.planning.forests.linear_program.packing import pack, repack
from topocomm.planning.forests.linear_program.pricers import OutTrees
from topocomm.planning.forests.linear_program.symmetry import no_symmetry


@pytest.mark.parametrize("most", [1, 2])
@pytest.mark.parametrize("case", [0, 3, 6, 11, 17, 28])
def test_no_choice_from_the_pool_is_much_better(case, most):
    pricer = OutTrees(no_symmetry(network(solved()[case][0])), 0)
    pool = [column for _, column in pack(pricer, 1e-6, 600).parts]
    parts = exchange_columns(pricer, pool[-most:], pool, lambda parts: len(parts) <= most)
    assert 0 < len(parts) <= most
    assert pricer.total(parts) >= pricer.total(repack(pricer, pool[-most:])) * (1 - 1e-9)
    best = max(pricer.total(repack(pricer, some)) for some in combinations(pool[:10], min(most, len(pool))))
    assert pricer.total(parts) >= 0.9 * best
