from dataclasses import replace
from pathlib import Path

import pytest

from tests.topology.paths import latency_us
from topocomm.errors import TopologyError
from topocomm.topology.catalog.systems import catalog
from topocomm.topology.discovery.sysfs import cpu_host
from topocomm.topology.merge.cluster import merge_hosts
from topocomm.topology.model import Device, Topology
from topocomm.topology.recognise import load

DATA = Path(__file__).parents[2] / "data/topologies"


def host(name, topology):
    return replace(topology, devices=tuple(d._replace(host=name) for d in topology.devices))


def test_one_host_is_returned_as_it_is():
    topology = load(DATA / "cube-mesh-8.txt")
    assert merge_hosts([topology]) is topology


def test_hosts_keep_their_names_and_order_and_share_a_network():
    box = load(DATA / "h100-8-nics.txt")
    merged = merge_hosts([host("node7", box), host("node66", box)])
    assert merged.hosts == ("node7", "node66")
    assert merged.endpoints == tuple(f"{name}/GPU{i}" for name in ("node7", "node66") for i in range(8))
    joined = {link.src for link in merged.links if link.dst == "network"}
    assert joined == {f"{name}/NIC{i}" for name in ("node7", "node66") for i in range(9)}
    assert merged.by_id["node7/NIC0"].name == "mlx5_0"
    assert {link.gb_per_s for link in merged.links if link.dst == "network"} == {None}
    assert len(merged.pairs) == 2 * len(box.pairs)


def test_hosts_of_one_name_are_numbered():
    box = load(DATA / "h100-8-nics.txt")
    assert merge_hosts([box, box, box]).hosts == ("host0", "host1", "host2")


def test_the_way_over_the_network():
    box = load(DATA / "h100-8-nics.txt")
    merged = merge_hosts([box, box])
    # GPU and NIC meet at PXB: 1.2 us on each side, and the network between the NICs 3.0 us.
    assert latency_us(merged, "host0/GPU3", "host1/GPU3") == 5.4
    assert latency_us(merged, "host0/GPU0", "host0/GPU3") == 0.6


@pytest.mark.parametrize("name", ["nvswitch-16.txt", "vm-8-no-numa.txt", "bridge-pairs-4.txt"])
def test_hosts_without_nics_are_joined_too(name):
    merged = merge_hosts([load(DATA / name)] * 2)
    assert latency_us(merged, merged.endpoints[0], merged.endpoints[-1]) > 3.0


def test_networks_that_hosts_name_themselves_become_one(tmp_path):
    nic = tmp_path / "class/net/eth0"
    (nic / "device").mkdir(parents=True)
    (nic / "speed").write_text("25000\n")
    one = cpu_host(tmp_path, host="a", usable={0, 1})
    merged = merge_hosts([one, cpu_host(tmp_path, host="b", usable={0})])
    assert [d.id for d in merged.devices if d.kind == "switch"] == ["network"]
    assert {link.gb_per_s for link in merged.links if link.dst == "network"} == {3.125}
    assert merged.endpoints == ("a/cpu0", "a/cpu1", "b/cpu0")


def test_warnings_name_their_host():
    merged = merge_hosts([host("a", load(DATA / "h100-8-nics.txt")), host("b", load(DATA / "nvswitch-16.txt"))])
    assert merged.warnings[0].startswith("a: h100-8-nics.txt: 18 links per GPU")


def test_the_result_is_the_same_every_time():
    box = load(DATA / "h100-8-nics.txt")
    assert merge_hosts([box, box]) == merge_hosts([box, box])


def test_clusters_cannot_be_merged_again():
    with pytest.raises(
        TopologyError, match="topology 'dgx-h100 x 2' has 2 hosts; several inputs must be one host each"
    ):
        merge_hosts([catalog("dgx-h100", hosts=2), catalog("dgx-h100")])
    with pytest.raises(TopologyError, match="no topology given"):
        merge_hosts([])


def test_a_host_without_endpoints_is_still_a_host():
    storage = Topology("s", "test", (Device("NIC0", "nic", host="store"),), ())
    merged = merge_hosts([storage, load(DATA / "cube-mesh-8.txt")])
    assert "store/NIC0" in merged.by_id
