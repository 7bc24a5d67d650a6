"""Catalogue systems as files for simulation in NCCL."""

import re

import pytest

from tests.topology.export import consumer
from tests.topology.export.test_nccl_xml_consumer import as_nccl
from topocomm.errors import TopologyError
from topocomm.topology.catalog.simulated_systems import simulated
from topocomm.topology.catalog.systems import SYSTEMS, catalog
from topocomm.topology.export.nccl_xml_writer import render
from topocomm.topology.readers.nccl.xml import nccl_xml

WITH_GPUS = [name for name in SYSTEMS if not name.startswith("cpu-")]


@pytest.mark.parametrize("name", WITH_GPUS)
def test_it_reads_back_as_the_catalogues_machine(name):
    """With the pairs' codes in NCCL's wording, which has no NODE; RCCL's links are counted."""
    topology = simulated(name)
    again = nccl_xml.read(render(topology), "again.xml")
    own = {(p.a, p.b): (p.code or "").replace("NODE", "PHB") for p in SYSTEMS[name]().pairs}
    read = {(p.a, p.b): re.sub(r"XGMI\d+", "XGMI", p.code or "") for p in again.pairs}
    assert read == own
    assert again.warnings == ()
    rates = {(p.a, p.b): p.gb_per_s for p in again.pairs if (p.code or "").startswith(("NV", "XGMI"))}
    assert rates == {(p.a, p.b): p.gb_per_s for p in SYSTEMS[name]().pairs if (p.a, p.b) in rates}


@pytest.mark.parametrize("name", WITH_GPUS)
def test_nccl_needs_no_machine_beside_it(name):
    """A simulation gives the file to `ncclTopoGetSystemFromXml` as it is: nothing is filled in from a machine."""
    text = as_nccl(render(simulated(name)))
    before = consumer.System(consumer.ET.fromstring(text))
    assert consumer.load(text).twice() == before.twice() == set()
    for net in before.fused.iter("net"):
        assert {"name", "dev", "speed", "gdr"} <= set(net.attrib)  # ncclTopoAddNic passes over a port without dev
    speeds = {net.get("speed") for net in before.fused.iter("net")}
    assert len(speeds) == 1 and int(speeds.pop()) in (10_000, 100_000, 200_000, 400_000)


def test_codes_that_nccl_derives():
    text = render(simulated("dgx-2"))
    topology = simulated("dgx-2")
    seen = consumer.load(text)
    devices = topology.by_id
    codes = {(p.a, p.b): p.code for p in SYSTEMS["dgx-2"]().pairs if p.b.startswith("NIC")}
    assert {"PIX", "PXB", "NODE", "SYS"} == set(codes.values())
    for (a, b), code in codes.items():
        assert seen.code(devices[a].bus_id, devices[b].bus_id) == code.replace("NODE", "PHB")


def test_the_head_says_that_bus_ids_are_made_up():
    assert "Bus ids are made up: for simulation in NCCL, not for a job." in render(simulated("dgx-h100"))
    assert "gb200-nvl72, one of 18 hosts, written by topocomm" in render(simulated("gb200-nvl72"))
    assert '<system version="2">' in render(simulated("mi300x-8"))


@pytest.mark.parametrize(("name", "hosts"), [("dgx-h100", 1), ("dgx-h100", 2), ("gb200-nvl72", 1)])
def test_without_bus_ids_the_refusal_names_the_flag(name, hosts):
    with pytest.raises(TopologyError, match="--invent-bus-ids"):
        render(catalog(name, hosts=hosts))


@pytest.mark.parametrize(("name", "words"), [("cpu-1-socket", "no GPU"), ("dgx-x", "not in the catalogue")])
def test_systems_that_nccl_cannot_plan_on(name, words):
    with pytest.raises(TopologyError, match=words):
        simulated(name)
