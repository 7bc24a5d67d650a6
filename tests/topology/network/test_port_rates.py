"""Rates of the network between merged hosts."""

from dataclasses import replace
from pathlib import Path

import pytest

import topocomm
from topocomm import catalog, load
from topocomm.topology.merge.cluster import merge_hosts
from topocomm.topology.model import Device, Topology
from topocomm.topology.network.port_rates import stated_rates

DATA = Path(__file__).parents[2] / "data"
CAPTURES = DATA / "captures"


def network(*hosts):
    """(GB/s and source of links to the network, what is said of it) of hosts as one machine."""
    merged = merge_hosts(hosts)
    figures = {(link.gb_per_s, link.gb_per_s_source) for link in merged.links if link.dst == "network"}
    return figures, [text for text in merged.warnings if "Gb/s assumed" in text]


@pytest.mark.parametrize(("capture", "gb_per_s"), [("nccl_log/1.log", 25.0), ("nccl_xml/1.xml", 25.0)])
def test_speeds_that_nccl_tells_are_those_of_the_network(capture, gb_per_s):
    box = load(CAPTURES / capture)
    assert network(box, box) == ({(gb_per_s, "read")}, [])


def test_ports_that_no_source_tells_are_as_the_slowest_that_is_told():
    box = load(DATA / "topologies/h100-8-nics.txt")
    figures, said = network(*[replace(box, facts={"net_speed_mbps": {"mlx5_0": 400_000, "mlx5_1": 100_000}})] * 2)
    assert figures == {(50.0, "read"), (12.5, "read"), (12.5, "assumed")}
    assert said[0] == (
        "host0: network: no source tells the rate of 7 ports: 100 Gb/s assumed, as the slowest port that is told"
    )


def test_else_as_what_slots_are_made_for():
    figures, said = network(*[load(CAPTURES / "lstopo/1.txt")] * 2)
    assert figures == {(25.0, "assumed")}  # a slot of PCIe 4 x16, 31.5 GB/s
    assert said[0].endswith("200 Gb/s assumed, the most that the slowest of the NICs' PCIe slots carries")
    assert network(*[load(DATA / "topologies/h100-8-nics.txt")] * 2) == ({(None, None)}, []), (
        "no figure of a NIC at all"
    )


def test_a_plan_over_two_captures_moves_bytes_at_the_rate_of_their_ports():
    merged = merge_hosts([load(CAPTURES / "nccl_xml/1.xml")] * 2)
    ends = [next(end for end in merged.endpoints if end.startswith(host)) for host in merged.hosts]
    plan = topocomm.plan(merged, "broadcast", payload_bytes=64 << 20, ranks=ends, objective="throughput")
    assert plan.figures.throughput_gb_per_s > 20, "10 Gb/s a port would be assumed without"
    assert not [text for text in plan.assumed if "network" in text and "GB/s" in text]


def test_facts_that_are_no_speeds_are_left():
    nics = tuple(Device(f"NIC{i}", "nic", "a", f"mlx5_{i}") for i in range(4))
    speeds = {"mlx5_0": 400000, "NIC1": 200000, "mlx5_2": -1, "mlx5_3": True}
    host = Topology("a", "test", nics, (), facts={"net_speed_mbps": speeds})
    assert stated_rates(host) == {"NIC0": 50.0, "NIC1": 25.0}
    assert stated_rates(replace(host, facts={"net_speed_mbps": 200_000_000})) == {}
    assert stated_rates(replace(host, facts={"port_gb_per_s": {"mlx5_3": 12.5}})) == {"NIC3": 12.5}
    assert len(stated_rates(catalog("dgx-h100"))) <= 8
