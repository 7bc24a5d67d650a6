"""From a machine of a log to devices, links and pairs."""

from tests.topology.readers.nccl.log.logs import MATRIX, SWITCHED, by, codes, links, read


def test_a_switched_machine():
    topology = read(by(2, SWITCHED + "NVLS multicast support is available on dev 2 (NVLS_NCHANNELS 16)"))
    assert topology.warnings == ()
    assert [(d.id, d.numa, d.bus_id) for d in topology.devices if d.kind in ("gpu", "nic")] == [
        ("GPU0", 0, "0000:03:00.0"),
        ("GPU1", 0, "0000:13:00.0"),
        ("GPU2", 3, "0000:83:00.0"),
        ("GPU3", 3, "0000:84:00.0"),
        ("NET0", 0, "0000:04:00.0"),
        ("NET10", 3, "0000:85:00.0"),
        ("NET11", 3, "0000:85:00.0"),
    ]
    by_id = topology.by_id
    assert (by_id["nvswitch0"].kind, by_id["nvswitch0"].in_network) == ("switch", "nvls")
    assert {d.id for d in topology.devices if d.kind == "numa"} == {"numa0", "numa3"}
    found = links(topology)
    assert all(found["GPU1", end] == found[end, "GPU1"] for end in ("nvswitch0", "pcie2"))
    assert found["GPU1", "nvswitch0"] == ("nvlink", 240.0)
    assert found["pcie2", "pcie1"] == ("pcie", 12.0)
    assert found["NET0", "pcie0"] == ("pcie", 24.0)
    assert found["NET10", "card0"] == ("pcie", 25.0)
    assert found["card0", "pcie3"] == ("pcie", 24.0)
    assert found["numa0", "numa3"] == found["numa3", "numa0"] == ("smp", 16.0)
    assert {link.gb_per_s_source for link in topology.links} == {"read"}
    assert codes(topology) == {
        **{f"GPU{i}-GPU{j}": "NVL" for i in range(4) for j in range(i + 1, 4)},
        **{f"GPU{i}-NET{j}": "SYS" for i in range(4) for j in (0, 10, 11)},
        **{"GPU0-NET0": "PIX", "GPU1-NET0": "PHB"},
        **{f"GPU{i}-NET{j}": "PIX" for i in (2, 3) for j in (10, 11)},
    }
    facts = topology.facts
    assert (facts["numa_nodes"], facts["max_bw"], facts["total_bw"]) == (2, 240.0, 240.0)
    assert facts["pci_bw"] == {"GPU0": 24.0, "GPU1": 12.0, "GPU2": 24.0, "GPU3": 24.0}
    assert (facts["sys_bw"], facts["nvlink_bw"], facts["nvls"]) == (16.0, 240.0, True)
    assert facts["rank_busid"] == {"0": "3000", "1": "13000", "2": "83000", "3": "84000"}


def test_the_matrix_goes_before_the_tree_and_gives_the_bottleneck():
    topology = read(by(0, SWITCHED + MATRIX))
    assert codes(topology)["GPU0-GPU2"] == "SYS"
    assert topology.facts["path_bw"] == {"GPU0-GPU2": 6.0}
    pair = next(p for p in topology.pairs if (p.a, p.b) == ("GPU0", "GPU2"))
    assert (pair.gb_per_s, pair.gb_per_s_source) == (6.0, "read")


def test_boards_are_their_gpus():
    tree = """=== System : maxBw 24.0 totalBw 48.0 ===
CPU/0-0 (1/1/2)
+ PCI[12.0] - DEV/0-b000 (100266a3106b0203)
              + LOC[5000.0] - GPU/0-b000
              + XGMI[24.0] - DEV/0-e000
+ PCI[12.0] - DEV/0-e000 (100266a3106b0203)
              + LOC[5000.0] - GPU/0-e000
              + XGMI[24.0] - DEV/0-b000
==========================================
"""
    ranks = "".join(
        by(r, f"comm 0x5a rank {r} nranks 2 cudaDev {r} nvmlDev {r} busId {b}000 commId 0x9 - Init START")
        for r, b in ((0, "e"), (1, "b"))
    )
    topology = read(ranks + by(0, tree))
    assert topology.warnings == ()
    assert [(d.id, d.bus_id) for d in topology.devices if d.kind == "gpu"] == [
        ("GPU0", "0000:0e:00.0"),
        ("GPU1", "0000:0b:00.0"),
    ]
    assert links(topology)["GPU0", "GPU1"] == ("xgmi", 24.0)
    assert links(topology)["GPU0", "numa0"] == ("pcie", 12.0)
    assert codes(topology) == {"GPU0-GPU1": "XGMI"}
    assert (topology.facts["pci_bw"], topology.facts["xgmi_bw"]) == (12.0, 24.0)


def test_virtual_nics_repeat_and_have_no_place():
    nic = "+ PCI[5000.0] - NIC/0-0\n" + 2 * "                + NET[1.2] - NET/0-1 (0/1/0/1.250000)\n"
    tree = SWITCHED.replace("+ SYS[16.0] - CPU/0-3\n", nic + "+ SYS[16.0] - CPU/0-3\n").replace(
        "+ SYS[16.0] - CPU/0-0\n", nic + "+ SYS[16.0] - CPU/0-0\n"
    )
    using = "NET/Socket : Using [0]eth0:10.0.0.1<0> [1]docker0:172.17.0.1<0>\nUsing network Socket\n"
    topology = read(by(0, using + tree))
    net = topology.by_id["NET1"]
    assert [d.id for d in topology.devices].count("NET1") == 1
    assert (net.name, net.numa, net.bus_id) == ("docker0", None, None)
    assert topology.by_id["NET0"].name == "eth0"
