"""Figures of devices: by name, by topology, from sources."""

import pytest

from tests.machines import joined, switch
from topocomm import PlanError, catalog
from topocomm.simulation.decode.datasheets import DEVICES, device_figures, recognise_device
from topocomm.topology.catalog.systems import SYSTEMS


@pytest.mark.parametrize("system", [name for name in SYSTEMS if not name.startswith("cpu")])
def test_every_gpu_of_the_catalogue_is_known(system):
    words = {"p3dn": "v100", "p4d": "a100-40gb", "dgx-2": "v100", "hgx-a100-4": "a100", "mi300x-8": "mi300x"}
    words["dgx-h100-taper2"] = "h100"
    found = recognise_device(catalog(system)).name
    assert words.get(system, found) == found
    assert system in words or found.split("-")[0] in system


def test_names_of_devices_come_before_that_of_the_topology():
    topology = switch(2)
    named = topology.__class__(
        "dgx-a100", "test", tuple(d._replace(name="NVIDIA H100 80GB HBM3") for d in topology.devices), topology.links
    )
    assert recognise_device(named).name == "h100"


def test_what_is_unknown_is_refused_with_the_names_known():
    for topology in (switch(2), joined([2]), catalog("cpu-1-socket")):
        with pytest.raises(PlanError, match="no memory bandwidth is known of its endpoints; name a device"):
            recognise_device(topology)
    with pytest.raises(PlanError, match="device 'h1000': expected one of p100"):
        device_figures("h1000")


def test_every_figure_has_a_source():
    assert all(each.source and min(each[1:4]) > 0 for each in DEVICES.values())
