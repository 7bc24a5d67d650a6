"""Members that share a NIC have turns; hosts of unlike sizes have none."""

import pytest

from topocomm import catalog
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.ways.nic_turns import nic_turns


@pytest.mark.parametrize(
    ("system", "turns"),
    [("dgx-1-v100", [0, 1] * 4), ("dgx-h100", [0] * 8), ("p3dn", list(range(8))), ("v100-4", [0, 0, 1, 1])],
)
def test_members_that_share_a_nic_have_turns(system, turns):
    machine = catalog(system, hosts=2)
    size = len(turns)
    found = nic_turns(machine.endpoints, (0, size, 2 * size), PathFinder(machine))
    assert sorted(found) == sorted(turns)
    assert nic_turns(machine.endpoints, (0, size, 2 * size - 1), PathFinder(machine)) == [0]
    assert nic_turns(machine.endpoints[:size], (0, size), PathFinder(machine)) == [0]
