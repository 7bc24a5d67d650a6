"""NICs and their ports in NCCL topology files."""

from tests.topology.readers.nccl.xml.reading import codes, links, read
from tests.topology.readers.nccl.xml.texts import TAG, bridge, cpu, gpu, net, nic, system


def test_nics_without_pci_device():
    """One that is listed under several processors is one NIC, near to all of them; it joins nothing."""
    docker = "<nic>" + net("docker0", 1, 10000) + "</nic>"
    eth = "<nic>" + net("eth0", 0, -1) + "</nic>"
    text = system(
        cpu(0, gpu("0000:01:00.0", TAG), eth, docker),
        cpu(1, gpu("0000:02:00.0", 'dev="1" rank="1"'), docker),
        cpu(2, gpu("0000:03:00.0", 'dev="2" rank="2"')),
    )
    topology = read(text)
    assert [(d.id, d.numa) for d in topology.devices if d.kind == "nic"] == [("eth0", 0), ("docker0", None)]
    assert codes(topology) == dict.fromkeys(
        ("GPU0-GPU1", "GPU0-GPU2", "GPU1-GPU2", "GPU1-eth0", "GPU2-eth0"), "SYS"
    ) | {
        "GPU0-eth0": "PHB",
        "GPU0-docker0": "PHB",
        "GPU1-docker0": "PHB",
        "GPU2-docker0": "SYS",
    }
    assert not any("docker0" in link[:2] for link in topology.links)
    facts = topology.facts
    assert (facts["nics"], facts["net_elements"], facts["net_physical"]) == (2, 3, [])
    assert facts["nic_numa"] == {"eth0": 0}


def test_nic_order_names_and_speeds():
    ports = [nic("0000:11:00.0", net("b", 1, 200000000)), nic("0000:10:00.0", net("a", 0, 200000000))]
    again = nic("0000:12:00.0", net("a", 2, 200000000), net("c", 3, 200000000))
    gin = nic("0000:13:00.0", '<net name="gin0" dev="0" net="0" gin="1"/>')
    topology = read(system(cpu(0, gpu("0000:01:00.0", TAG), *ports, again, gin)))
    assert topology.facts["net_names"] == ["a", "b", "a@0000:12:00.0", "c"]
    assert topology.facts["net_speed_mbps"] == 200000000
    assert links(topology)["c", "adapter0"].gb_per_s == 25.0
    assert topology.warnings == ("topo.xml:6: a, b, c: a speed beyond any port; read as kb/s instead of Mb/s",)


def test_fused_ports_at_a_switch():
    """NCCL puts ports that it fused under the switch that their cards share."""
    fused = "<nic>" + net("mlx5_0+mlx5_1", 0, 800000) + "</nic>"
    topology = read(
        system(cpu(0, bridge("0000:05:00.0", fused, gpu("0000:06:00.0", TAG)), gpu("0000:07:00.0", 'dev="1"')))
    )
    assert codes(topology) == {"GPU0-GPU1": "PHB", "GPU0-mlx5_0+mlx5_1": "PIX", "GPU1-mlx5_0+mlx5_1": "PHB"}
