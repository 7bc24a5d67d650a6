"""Rates of the fastest links of endpoints and of groups, on two hosts of DGX-1 and of H100."""

import numpy as np
import pytest

import topocomm
from topocomm.planning.bounds.endpoint_groups import families
from topocomm.planning.bounds.machine_columns import Machine
from topocomm.planning.bounds.time.fastest_links import fastest_across, fastest_at, fastest_of, ids_of
from topocomm.planning.routing.paths import PathFinder


@pytest.fixture
def machine():
    made = topocomm.catalog("dgx-1-v100", hosts=2)
    return Machine(made.endpoints, PathFinder(made))


@pytest.mark.parametrize("direction", ["in", "out"])
def test_links_of_an_endpoint_the_fastest_first(machine, direction):
    """A GPU has two links of 50 GB/s, two of 25 and one of 16."""
    for ports, rate in ((1, 50.0), (2, 100.0), (3, 125.0), (5, 166.0), (9, 166.0)):
        assert fastest_at(machine, direction, ports).tolist() == [rate] * 16


def test_links_that_leave_a_group(machine):
    single, hosts = families(machine)[0]
    assert fastest_across(single)[0] == 50.0
    rate, labels = fastest_across(hosts)
    assert rate == 12.5
    assert fastest_of(labels, machine, "out", 2).tolist() == [12.5, 12.5]
    first = ids_of(machine, np.flatnonzero(labels == 0))
    assert {"h0/GPU0", "h0/GPU7", "h0/NIC0"} <= set(first) and not any(name.startswith("h1") for name in first)
