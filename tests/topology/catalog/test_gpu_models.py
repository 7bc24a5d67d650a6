"""Models and memory of the catalogue's GPUs, in pictures too."""

import re

import pytest

from topocomm import catalog, plan
from topocomm.simulation.decode.datasheets import DEVICES, recognise_device
from topocomm.topology.catalog.gpu_models import GPUS, gpu_models
from topocomm.topology.catalog.systems import SYSTEMS
from topocomm.topology.draw.svg.machine_svg import render
from topocomm.topology.merge.link_rates import with_rates


def test_every_system_with_gpus_is_named():
    assert set(GPUS) == {name for name in SYSTEMS if not name.startswith("cpu-")}
    assert gpu_models(catalog("cpu-2-socket")) == {}


@pytest.mark.parametrize("name", GPUS)
def test_memory_is_what_steps_of_models_are_simulated_with(name):
    sizes = {float(size) for size in re.findall(r"\d+(?= or| GB)", GPUS[name])}
    assert recognise_device(catalog(name)).memory_gb in sizes
    assert sizes <= {device.memory_gb for device in DEVICES.values()}


@pytest.mark.parametrize("hosts", [1, 2, 40])
def test_pictures_tell_them_when_pointed_at(hosts):
    machine = catalog("dgx-h100", hosts=hosts)
    changed = with_rates(machine, ["nvlink=400"])
    for topology in (machine, changed):
        assert set(gpu_models(topology)) == set(machine.endpoints)
        titles = re.findall(r"<title>(GPU/[^<]*|host h[^<]*|[0-9]+ GPU[^<]*)</title>", render(topology))
        assert titles and all("\nH100 SXM5, 80 GB of memory (datasheet)" in title for title in titles)
    picture = plan(catalog("dgx-h100"), payload_bytes=4096).svg()
    assert picture.count("H100 SXM5, 80 GB of memory (datasheet)") == 8
