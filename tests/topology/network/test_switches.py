from pathlib import Path

import pytest

import topocomm
from tests.topology.paths import latency_us
from topocomm.errors import TopologyError
from topocomm.topology.catalog.systems import catalog
from topocomm.topology.merge.cluster import merge_hosts
from topocomm.topology.network import switches as fabric
from topocomm.topology.network.switches import addressed_fabric, matches, read, with_fabric

CONF = """\
# two leaves below a spine
SwitchName=s1 Nodes=node[1-2] LinkSpeed=100
switchname=s2 nodes=node3,node4
SwitchName=spine \\
    Switches=s[1-2]
"""


def cluster(*names, system="dgx-h100"):
    """Hosts with these names, each joined to the network by its NICs."""
    one = catalog(system, hosts=2)
    own = {d.id: d._replace(id=d.id[3:]) for d in one.devices if d.host == "h0"}
    links = tuple(x._replace(src=x.src[3:], dst=x.dst[3:]) for x in one.links if {x.src, x.dst} <= set(own))
    hosts = []
    for name in names:
        devices = tuple(d._replace(host=name) for d in own.values())
        facts = {"port_gb_per_s": {"NIC0": 50.0}}
        named = tuple(d._replace(name=d.id) if d.kind == "nic" else d for d in devices)
        hosts.append(topocomm.Topology(name, "test", named, links, facts=facts))
    return merge_hosts(hosts)


def test_other_texts_are_not_matched():
    data = Path(__file__).parents[2] / "data/topologies"
    for file in data.glob("*.txt"):
        assert not matches(file.read_text())
    assert not matches('{"schema": "topocomm.topology/1", "devices": [], "links": []}')
    assert not matches("")


def test_leaves_take_the_place_of_the_network():
    topology = with_fabric(cluster("node1", "node2", "node3", "node4.site"), read(CONF, "t.conf"))
    switches = [d.id for d in topology.devices if d.host == "network"]
    assert switches == ["s1", "s2", "spine"]
    joined = {(x.src, x.dst): x for x in topology.links if x.kind == "network"}
    assert joined["node1/NIC0", "s1"].gb_per_s == 50.0
    assert joined["node1/NIC1", "s1"].gb_per_s_source == "assumed", "as the slowest port that is told"
    assert ("node4.site/NIC7", "s2") in joined
    assert ("s1", "spine") in joined and ("spine", "s1") in joined
    assert {(b, a) for a, b in joined} == set(joined)
    assert latency_us(topology, "node1/GPU0", "node2/GPU0") == 5.0
    assert latency_us(topology, "node1/GPU0", "node3/GPU0") == 6.0
    assert topology.hosts == ("node1", "node2", "node3", "node4.site")
    assert all("Gb/s assumed" in text for text in topology.warnings)


def test_switches_that_join_nothing_here_are_left_out():
    text = CONF + "SwitchName=core Switches=spine,s9\nSwitchName=s9 Nodes=node9\nSwitchName=s8 Nodes=node8\n"
    topology = with_fabric(cluster("node1", "node3"), read(text, "t.conf"))
    assert [d.id for d in topology.devices if d.host == "network"] == ["s1", "s2", "spine"]
    alone = with_fabric(cluster("node1", "node2"), read(text, "t.conf"))
    assert [d.id for d in alone.devices if d.host == "network"] == ["s1"]


def test_switches_in_between_count_as_steps():
    text = (
        "SwitchName=a Nodes=node1\nSwitchName=b Nodes=node2\nSwitchName=up Switches=a\nSwitchName=core Switches=up,b\n"
    )
    topology = with_fabric(cluster("node1", "node2"), read(text, "t.conf"))
    assert [d.id for d in topology.devices if d.host == "network"] == ["a", "b", "core"]
    assert latency_us(topology, "node1/GPU0", "node2/GPU0") == 5.0 + 1.5


def test_hosts_and_trees_that_nothing_joins_stay_on_the_network():
    text = "SwitchName=s1 Nodes=node1\nSwitchName=s2 Nodes=node2\n"
    topology = with_fabric(cluster("node1", "node2", "node7"), read(text, "t.conf"))
    joined = {(x.src, x.dst) for x in topology.links if x.dst == "network"}
    assert {("s1", "network"), ("s2", "network"), ("node7/NIC0", "network")} <= joined
    said = tuple(text for text in topology.warnings if "Gb/s assumed" not in text)
    assert said == ("t.conf: node7: below no switch; taken to be at the top of the network",)


def test_no_host_in_common():
    with pytest.raises(TopologyError, match=r"t.conf: none of the hosts a, b is below a switch of topology.conf"):
        with_fabric(cluster("a", "b"), read(CONF, "t.conf"))


def test_a_switch_called_like_a_device():
    topology = with_fabric(cluster("node1", "node2"), read("SwitchName=node1/NIC0 Nodes=node[1-2]\n", "t.conf"))
    assert "switch node1/NIC0" in topology.by_id


def test_plans_on_a_cluster_with_leaves():
    topology = with_fabric(cluster("node1", "node2", "node3", system="cpu-1-socket"), read(CONF, "t.conf"))
    plan = topocomm.plan(topology, "allreduce", payload_bytes=1024)
    assert plan.proof.complete


def test_switch_paths_of_slurm():
    pattern = "switch.switch.node"
    found = addressed_fabric({"a": ("top.s1.a", pattern), "b": ("top.s2.b", pattern), "c": ("top.s1.c", pattern)})
    assert dict(found.switches) == {"top": ("s1", "s2"), "s1": (), "s2": ()}
    assert dict(found.hosts) == {"s1": ("a", "c"), "s2": ("b",)}


@pytest.mark.parametrize(
    "address", [("", ""), ("a", "node"), ("top.s1", "switch.switch.node"), ("top..a", "switch.switch.node"), ("x", "y")]
)
def test_without_switch_paths_there_is_no_fabric(address):
    assert addressed_fabric({"a": ("top.s1.a", "switch.switch.node"), "b": address}) is None
    assert addressed_fabric({"b": address}) is None


def test_paths_that_contradict_each_other_are_no_fabric():
    pattern = "switch.switch.node"
    assert addressed_fabric({"a": ("x.s1.a", pattern), "b": ("y.s1.b", pattern)}) is None


def test_the_public_names_of_the_module():
    assert set(fabric.__all__) == {"Fabric", "addressed_fabric", "matches", "read", "with_fabric"}
