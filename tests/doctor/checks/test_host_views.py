"""A topology host by host."""

import pytest

from tests.doctor.machines import pcie_host, with_facts
from topocomm import catalog
from topocomm.doctor.checks.host_views import hosts_of, number_of
from topocomm.doctor.finding import Finding
from topocomm.topology.draw.names import some


def test_devices_links_and_codes_go_to_their_host():
    first, second = hosts_of(catalog("dgx-h100", hosts=2))
    assert (first.name, second.name, first.alone) == ("h0", "h1", False)
    assert [first.local(gpu.id) for gpu in first.gpus] == [f"GPU{i}" for i in range(8)]
    assert len(first.nics) == len(second.nics) == 8
    assert {link.src.partition("/")[0] for link in second.links} == {"h1"}
    assert first.codes["h0/GPU0", "h0/GPU1"] == first.codes["h0/GPU1", "h0/GPU0"] == "NV18"
    assert set(first.lanes().values()) == {18}


def test_findings_name_the_host_where_there_are_several():
    one, two = hosts_of(catalog("dgx-h100"))[0], hosts_of(catalog("dgx-h100", hosts=2))[1]
    assert one.finding("ok", "a", "b") == Finding("ok", "a", "b")
    assert two.finding("ok", "a", "b") == Finding("ok", "a", "h1: b")


def test_links_without_lanes_count_as_none_on_pcie():
    (host,) = hosts_of(pcie_host({"GPU0": 10.0, "NIC0": 5.0}))
    assert host.lanes() == {}


def test_facts_of_one_host_and_of_several():
    assert hosts_of(with_facts({"p2p": 1}))[0].facts == {"p2p": 1}
    cluster = with_facts({"h1": {"p2p": 2}, "h0": "text"}, catalog("dgx-h100", hosts=2))
    assert [host.facts for host in hosts_of(cluster)] == [{}, {"p2p": 2}]


@pytest.mark.parametrize(("name", "number"), [("GPU3", 3), ("GPU", None), ("NIC3", None), ("GPU1234567", None)])
def test_numbers_of_gpus(name, number):
    assert number_of(name) == number


def test_names_are_cut():
    assert some(list("abcdef")) == "a, b, c, d and 2 more"
    assert some(list("ab")) == "a, b"
