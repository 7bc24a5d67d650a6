import pytest

from tests.topology.paths import latency_us
from topocomm.errors import TopologyError
from topocomm.topology.catalog.systems import SYSTEMS, catalog


@pytest.mark.parametrize("hosts", [1, 2, 3])
@pytest.mark.parametrize("name", SYSTEMS)
def test_every_system_is_whole(name, hosts):
    topology = catalog(name, hosts=hosts)
    assert len(topology.hosts) == hosts * (18 if name == "gb200-nvl72" else 1)
    edges = [(link.src, link.dst) for link in topology.links]
    assert len(edges) == len(set(edges))
    assert {(b, a) for a, b in edges} == set(edges)
    assert all(link.gb_per_s and link.latency_us for link in topology.links)
    ends = topology.endpoints
    for other in {ends[1], ends[-1], ends[len(ends) // 2]}:
        assert latency_us(topology, ends[0], other) == latency_us(topology, other, ends[0]) > 0
    assert catalog(name, hosts=hosts) == topology


@pytest.mark.parametrize(
    "name", ["dgx-h100", "dgx-a100", "mi300x-8", "dgx-1-v100", "mi250x", "dgx-1-p100", "dgx-2", "dgx-b200"]
)
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


DIGESTS = {
    ("dgx-1-v100", 1): "64a125d239f166bf",
    ("dgx-1-v100", 3): "c24bb66291cefaed",
    ("dgx-a100", 1): "ca6648509eb3c8ad",
    ("dgx-a100", 3): "ffcf850dec50e7b1",
    ("dgx-h100", 1): "629cedeca48d18e9",
    ("dgx-h100", 3): "a5a32eea5bb05870",
    ("mi250x", 1): "1230178214f357f6",
    ("mi250x", 3): "0d8e3aa615067d99",
    ("mi300x-8", 1): "37a6fe34a3ed9352",
    ("mi300x-8", 3): "75b32c4e9d951e3e",
    ("rtx4090-pcie-8", 1): "17aecaa36883afaf",
    ("rtx4090-pcie-8", 3): "87757dc03da1a093",
    ("cpu-2-socket", 1): "cd0225ea38dc0a80",
    ("cpu-2-socket", 3): "93c77be4c01f28ba",
}
"""Of the systems that plans were saved for."""


@pytest.mark.parametrize(("name", "hosts"), DIGESTS)
def test_saved_plans_still_fit(name, hosts):
    assert catalog(name, hosts=hosts).digest[:16] == DIGESTS[name, hosts]


def test_a_rack_is_one_nvlink_domain_of_eighteen_hosts():
    topology = catalog("gb200-nvl72")
    assert topology.hosts == tuple(f"h{i}" for i in range(18))
    assert [d.id for d in topology.devices if d.kind == "switch"] == ["nvswitch0"]
    assert {link.kind for link in topology.links} == {"nvlink"}
    codes = {(p.a, p.b): p.code for p in topology.pairs}
    assert sum("NIC" not in b for _, b in codes) == 72 * 71 // 2
    assert (codes["h0/GPU1", "h17/GPU0"], codes["h3/GPU0", "h3/NIC3"]) == ("NV18", "SYS")


def test_racks_are_joined_by_rails():
    topology = catalog("gb200-nvl72", hosts=2)
    assert (topology.name, len(topology.hosts), len(topology.endpoints)) == ("gb200-nvl72 x 2", 36, 144)
    into = {(x.src, x.dst): x for x in topology.links}
    assert into["h17/GPU0", "nvswitch0"].gb_per_s == into["h18/GPU0", "nvswitch1"].gb_per_s == 900.0
    assert into["h35/NIC3", "rail3"].gb_per_s == 50.0
    assert latency_us(topology, "h0/GPU2", "h17/GPU2") == 0.6
    assert latency_us(topology, "h0/GPU2", "h18/GPU2") > 5.0


@pytest.mark.parametrize(("hosts", "up"), [(2, 50.0), (3, 100.0), (4, 100.0), (8, 200.0)])
def test_a_taper_of_two_has_half_the_ports_towards_the_spine(hosts, up):
    rates = {(x.src, x.dst): x.gb_per_s for x in catalog("dgx-h100-taper2", hosts=hosts).links}
    assert rates["rail0", "spine"] == rates["spine", "rail7"] == up
    assert catalog("dgx-h100-taper2").digest == catalog("dgx-h100").digest


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
