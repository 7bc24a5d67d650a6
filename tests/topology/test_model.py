import pytest

from topocomm import catalog, load
from topocomm.errors import TopologyError
from topocomm.topology.model import Device, Link, Topology


def topology(devices, links=()):
    return Topology("t", "test", tuple(devices), tuple(links))


def test_endpoints_are_the_gpus_or_else_the_cpus():
    gpu, cpu, switch = Device("GPU0", "gpu"), Device("cpu0", "cpu"), Device("s", "switch")
    assert topology([cpu, switch, gpu]).endpoints == ("GPU0",)
    assert topology([cpu, switch]).endpoints == ("cpu0",)
    assert topology([switch]).endpoints == ()


def test_hosts_are_those_with_endpoints_in_order():
    devices = [Device("rail0", "switch", "network"), Device("b", "gpu", "h1"), Device("a", "gpu", "h0")]
    assert topology(devices).hosts == ("h1", "h0")


def test_ids_are_used_once_and_links_name_devices():
    with pytest.raises(TopologyError, match="device id 'a' is used twice"):
        topology([Device("a", "gpu"), Device("a", "cpu")])
    with pytest.raises(TopologyError, match="link 'a' -> 'b' names the unknown device 'b'"):
        topology([Device("a", "gpu")], [Link("a", "b", "nvlink")])


def test_the_digest_is_of_devices_and_links_alone():
    devices, links = (Device("a", "gpu"), Device("b", "gpu")), (Link("a", "b", "nvlink", 1, 25.0),)
    one = Topology("one", "here", devices, links)
    assert one.digest == Topology("two", "there", devices, links, warnings=("w",)).digest
    assert one.digest != Topology("one", "here", devices, (Link("a", "b", "nvlink", 1, 26.0),)).digest


def test_the_graph_adds_up_parallel_links():
    devices = [Device("a", "gpu", numa=1), Device("b", "gpu")]
    links = [Link("a", "b", "nvlink", 1, 25.0), Link("a", "b", "pcie", 1, 16.0), Link("b", "a", "pcie")]
    graph = topology(devices, links).graph
    assert graph.nodes["a"]["numa"] == 1
    assert graph.edges["a", "b"]["gb_per_s"] == 41.0
    assert graph.edges["b", "a"]["gb_per_s"] is None


def test_a_saved_topology_is_loaded_as_it_was(tmp_path):
    machine = catalog("dgx-h100", hosts=2)
    machine.save(tmp_path / "machine.json")
    assert load(tmp_path / "machine.json") == machine
