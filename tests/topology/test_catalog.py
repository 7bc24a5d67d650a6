import pytest

from tests.topology.paths import latency_us
from topocomm.errors import TopologyError
from topocomm.topology.catalog import SYSTEMS, catalog


def egress_gb_per_s(topology, device):
    return sum(link.gb_per_s for link in topology.links if link.src == device)


@pytest.mark.parametrize("hosts", [1, 2, 3])
@pytest.mark.parametrize("name", SYSTEMS)
def test_every_system_is_whole(name, hosts):
    topology = catalog(name, hosts=hosts)
    assert len(topology.hosts) == hosts
    edges = [(link.src, link.dst) for link in topology.links]
    assert len(edges) == len(set(edges))
    assert {(b, a) for a, b in edges} == set(edges)
    assert all(link.gb_per_s and link.latency_us for link in topology.links)
    ends = topology.endpoints
    for other in {ends[1], ends[-1], ends[len(ends) // 2]}:
        assert latency_us(topology, ends[0], other) == latency_us(topology, other, ends[0]) > 0
    assert catalog(name, hosts=hosts) == topology


@pytest.mark.parametrize(
    ("name", "ends", "egress"),
    [
        ("dgx-h100", 8, 450.0),
        ("dgx-a100", 8, 300.0),
        ("mi300x-8", 8, 448.0),
        ("rtx4090-pcie-8", 8, 32.0),
        ("dgx-1-v100", 8, 150.0 + 16.0),
        ("cpu-2-socket", 16, 10.0),
    ],
)
def test_what_leaves_each_endpoint_of_one_host(name, ends, egress):
    topology = catalog(name)
    assert len(topology.endpoints) == ends
    assert {egress_gb_per_s(topology, end) for end in topology.endpoints} == {egress}


@pytest.mark.parametrize(
    ("name", "a", "b", "us"),
    [
        ("dgx-h100", "GPU0", "GPU7", 0.6),
        ("dgx-a100", "GPU3", "GPU4", 0.6),
        ("mi300x-8", "GPU0", "GPU5", 0.7),
        ("mi250x", "GPU0", "GPU6", 0.7),
        ("dgx-1-v100", "GPU0", "GPU4", 0.7),
        ("dgx-1-v100", "GPU0", "GPU5", 2.0),
        ("rtx4090-pcie-8", "GPU0", "GPU3", 1.4),
        ("rtx4090-pcie-8", "GPU0", "GPU4", 2.0),
        ("cpu-2-socket", "cpu0", "cpu7", 0.2),
        ("cpu-2-socket", "cpu0", "cpu8", 0.6),
    ],
)
def test_latencies_inside_a_host(name, a, b, us):
    assert latency_us(catalog(name), a, b) == us


@pytest.mark.parametrize("name", ["dgx-h100", "dgx-a100", "mi300x-8", "dgx-1-v100", "mi250x"])
def test_one_rail_takes_five_us_and_the_spine_more(name):
    topology = catalog(name, hosts=3)
    assert latency_us(topology, "h0/GPU6", "h2/GPU6") == 5.0
    assert latency_us(topology, "h0/GPU0", "h1/GPU7") == 6.0


@pytest.mark.parametrize(("name", "port"), [("dgx-h100", 50.0), ("dgx-a100", 25.0)])
def test_every_gpu_has_its_nic_on_its_rail(name, port):
    topology = catalog(name, hosts=4)
    up = {(link.src, link.dst): link.gb_per_s for link in topology.links if link.kind == "network"}
    assert all(up[f"h{host}/NIC{i}", f"rail{i}"] == port for host in range(4) for i in range(8))
    assert up["rail3", "spine"] == 4 * port
    assert topology.by_id["h3/GPU7"].host == "h3"
    assert topology.by_id["rail0"].host not in topology.hosts


def test_one_host_has_no_links_that_lead_nowhere():
    topology = catalog("dgx-h100")
    assert {link.kind for link in topology.links} == {"nvlink"}
    assert sum(d.kind == "nic" for d in topology.devices) == 8


def test_cube_mesh_has_six_links_per_gpu():
    topology = catalog("dgx-1-v100")
    for i in range(8):
        lanes = [link.lanes for link in topology.links if link.src == f"GPU{i}" and link.kind == "nvlink"]
        assert sorted(lanes) == [1, 1, 2, 2]


def test_full_mesh_has_one_link_per_pair():
    topology = catalog("mi300x-8")
    assert len(topology.links) == 56
    assert {(link.lanes, link.gb_per_s) for link in topology.links} == {(1, 64.0)}


def test_codes_of_pairs():
    codes = {(p.a, p.b): p.code for p in catalog("dgx-h100").pairs}
    assert (codes["GPU0", "GPU1"], codes["GPU0", "NIC0"], codes["GPU0", "NIC3"], codes["GPU0", "NIC4"]) == (
        "NV18",
        "PIX",
        "NODE",
        "SYS",
    )
    assert {p.code for p in catalog("mi300x-8").pairs if "NIC" not in p.b} == {"XGMI"}
    codes = {(p.a, p.b): p.code for p in catalog("dgx-1-v100").pairs}
    assert (codes["GPU0", "GPU3"], codes["GPU0", "GPU5"], codes["GPU3", "NIC1"]) == ("NV2", "SYS", "PIX")


def test_cores_of_two_sockets():
    topology = catalog("cpu-2-socket")
    assert topology.endpoints == tuple(f"cpu{i}" for i in range(16))
    assert [topology.by_id[f"cpu{i}"].numa for i in (0, 7, 8, 15)] == [0, 0, 1, 1]


def test_unknown_names_list_the_known_ones():
    with pytest.raises(
        TopologyError, match=r"system 'dgx-x' is not in the catalogue; it has dgx-1-v100, .*cpu-2-socket"
    ):
        catalog("dgx-x")


@pytest.mark.parametrize("hosts", [0, -1])
def test_at_least_one_host(hosts):
    with pytest.raises(TopologyError, match=f"hosts must be at least 1, got {hosts}"):
        catalog("dgx-h100", hosts=hosts)
