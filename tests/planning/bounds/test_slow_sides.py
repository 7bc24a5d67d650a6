"""Parts of hosts that cannot fill the NIC alone, by hand."""

import pytest

from topocomm import catalog
from topocomm.planning.bounds.machine_columns import Machine
from topocomm.planning.bounds.slow_sides import slow_sides
from topocomm.planning.routing.paths import PathFinder


def found(machine):
    columns = Machine(machine.endpoints, PathFinder(machine))
    sides, borders = slow_sides(columns)
    ends = set(machine.endpoints)
    names = [[{columns.ids[at] for at in own.nonzero()[0]} & ends for own in side[:2]] for side in sides]
    return names, [side.out for side in sides], borders


def test_a_card_past_a_bus_does_not_fill_the_nic():
    """GPU1 is past 16 GB/s, the NIC has 25."""
    names, out, borders = found(catalog("a100-pcie-2", hosts=2))
    assert names == [[{f"h{host}/GPU0", f"h{host}/GPU1"}, {f"h{host}/GPU1"}] for host in (0, 0, 1, 1)]
    assert out == [True, False, True, False]
    assert borders.gb_per_s.tolist() == [25.0] * 4 and borders.slow_gb_per_s.tolist() == [16.0] * 4
    assert borders.fast.tolist() == [[True, False, False, False]] * 2 + [[False, False, True, False]] * 2


@pytest.mark.parametrize(
    ("system", "hosts"),
    [("a100-pcie-2", 1), ("dgx-h100", 2), ("p3dn", 2), ("mi100-8", 2), ("cpu-2-socket-64", 2), ("gb200-nvl72", 1)],
)
def test_hosts_that_fill_their_nics_have_none(system, hosts):
    """One host has no border, NVLinks leave a side of p3dn, and four of MI100 are beside the NIC: one of them sends."""
    assert found(catalog(system, hosts=hosts)) == ([], [], None)
