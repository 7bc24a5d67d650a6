"""Trees as a schedule: any number of rows, parts of any size."""

import pytest

from tests.machines import line, switch
from tests.planning.forests.machines import check
from tests.thinning import alternating
from topocomm.planning.forests.forest import COLLECTIVES
from topocomm.topology.catalog.systems import catalog


@pytest.mark.parametrize(("name", "rows"), alternating(COLLECTIVES, [1, 2, 5, 13]))
def test_few_rows(name, rows):
    check(switch(5), name, rows)
    check(catalog("dgx-1-v100"), name, rows)


@pytest.mark.parametrize("parts", [(0, 0, 9, 0), (700, 100, 0, 300), (1, 2, 3, 4)])
@pytest.mark.parametrize("name", ["allgather", "reduce_scatter"])
def test_uneven_parts(name, parts):
    check(switch(4), name, sum(parts), parts=parts)
    check(line(4), name, sum(parts), parts=parts)
