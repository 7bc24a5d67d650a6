"""Processors, GPUs, NICs and their ports in NCCL topology files: numbers, names, and what is wrong with them."""

import pytest

from tests.topology.readers.nccl.xml.reading import codes, links, read
from tests.topology.readers.nccl.xml.texts import TAG, bridge, cpu, gpu, h100_half, net, nic, nvlink, system
from topocomm.errors import TopologyError
from topocomm.topology.model import Device
from topocomm.topology.readers.nccl.xml import nccl_xml


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


def test_template_without_tags():
    """GPUs and NICs by class, numbered by their order in the file; a bridge without class by what is in it."""
    inside = '<pci busid="ffff:ff:01.0">' + gpu("0002:00:00.0") + nic("0102:00:00.0") + gpu("0001:00:00.0") + "</pci>"
    topology = read(system(cpu(3, inside), cpu(1, gpu("0003:00:00.0", kind="0x120000"))))
    gpus = {d.id: (d.bus_id, d.numa) for d in topology.devices if d.kind == "gpu"}
    assert gpus == {"GPU0": ("0002:00:00.0", 3), "GPU1": ("0001:00:00.0", 3), "GPU2": ("0003:00:00.0", 1)}
    assert codes(topology) == {
        "GPU0-GPU1": "PIX",
        "GPU0-GPU2": "SYS",
        "GPU1-GPU2": "SYS",
        "GPU0-0102:00:00.0": "PIX",
        "GPU1-0102:00:00.0": "PIX",
        "GPU2-0102:00:00.0": "SYS",
    }
    assert topology.by_id["0102:00:00.0"] == Device("0102:00:00.0", "nic", numa=3, bus_id="0102:00:00.0")
    assert topology.facts["gpu_tags"] == 0
    assert links(topology)["pcie0", "numa3"].gb_per_s is None  # absent attributes: NCCL fills them in
    assert not {"gpu_rank", "sm", "nvlink_total_per_gpu", "net_names"} & topology.facts.keys()


def test_bare_bus_ids():
    topology = read('<system version="1"><cpu numaid="0"><pci busid="0000:00:1f.0"/></cpu></system>')
    assert [d.kind for d in topology.devices] == ["numa"]
    assert topology.facts["busids_file_order"] == ["0000:00:1f.0"]
    assert topology.facts["numa_by_busid"] == {"0000:00:1f.0": 0}
    assert "no GPU" in topology.warnings[0]


def test_gpus_are_numbered_by_dev_else_rank_else_order():
    def ids(*tags):
        text = system(cpu(0, *(gpu(f"0000:0{i}:00.0", tag) for i, tag in enumerate(tags))))
        return {d.bus_id[5:7]: d.id for d in read(text).devices if d.kind == "gpu"}

    assert ids('dev="5" rank="0"', 'dev="0x1" rank="1"') == {"00": "GPU5", "01": "GPU1"}
    assert ids('dev="0" rank="7"', 'dev="0" rank="3"') == {"00": "GPU7", "01": "GPU3"}
    assert ids('sm="80"', 'dev="0"') == {"00": "GPU0", "01": "GPU1"}


def test_gpu_without_tag_beside_tagged_ones_is_not_of_the_job():
    topology = read(system(cpu(0, gpu("0000:01:00.0", TAG), gpu("0000:02:00.0"))))
    assert [d.id for d in topology.devices if d.kind == "gpu"] == ["GPU0"]
    assert topology.warnings == (
        "topo.xml:6: 0000:02:00.0: a GPU without <gpu> beside some that have it; passed over, as NCCL does",
    )


def test_ranks_that_share_a_gpu():
    shared = '<pci busid="0000:01:00.0" class="0x030200"><gpu dev="0" rank="0"/><gpu dev="0" rank="1"/></pci>'
    topology = read(system(cpu(0, shared)))
    assert [d.id for d in topology.devices if d.kind == "gpu"] == ["GPU0"]
    assert "several <gpu>" in topology.warnings[0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (system(cpu(0), version="3"), r'topo.xml:1: <system> has version="3"; expected version="1" \(NCCL\) or "2"'),
        (system(cpu(0), version=None), "topo.xml:1: <system> has no version"),
        (system(cpu(0), version="one"), 'topo.xml:1: <system version="one">: expected a whole number'),
        (system(), "topo.xml:1: <system> has no <cpu>"),
        (system(cpu("x")), 'topo.xml:2: <cpu numaid="x">: expected a whole number from -1'),
        (system(cpu(0, "<pci/>")), "topo.xml:3: <pci> has the busid ''; expected one like 0000:0f:00.0"),
        (system(cpu(0, gpu("nonsense"))), "topo.xml:3: <pci> has the busid 'nonsense'"),
        (system(cpu(0, gpu("0:1:0"), gpu("0000:01:00.0"))), "4: GPU 0000:01:00.0 is there twice, first on line 3"),
        (system(cpu(0, nic("0000:01:00.0"), nic("0000:01:00.0"))), "topo.xml:4: the NIC 0000:01:00.0 is there twice"),
        (system(cpu(0, gpu("0000:01:00.0", 'dev="0" rank="x"'))), 'topo.xml:4: <gpu rank="x">: expected a whole'),
        (system(cpu(0, gpu("0000:01:00.0", 'dev="a"'))), 'topo.xml:4: <gpu dev="a">: expected a whole number'),
        (system(cpu(0, gpu("0000:01:00.0", TAG, nvlink("0000:02:00.0", "many")))), '<nvlink count="many">'),
        (system(cpu(0, gpu("0000:01:00.0", TAG, nvlink("0000:02:00.0", 900)))), 'expected a whole number from 0 to 64'),
        (system(cpu(0, gpu("0000:01:00.0", TAG, '<nvlink count="2"/>'))), "topo.xml:4: <nvlink> of GPU0 has no target"),
        (system(cpu(0, gpu("0000:01:00.0", TAG, '<xgmi target="0000:02:00.0"/>'))), "<xgmi> of GPU0 has no count"),
        (system(cpu(0, gpu("0:1:0", TAG, nvlink("0:1:0", more=' gb_per_s="fast"')))), 'gb_per_s="fast": expected GB/s'),
        (system(cpu(0, nic("0000:01:00.0", net("a", 0, "quick")))), '<net speed="quick">: expected a whole number'),
        (system(cpu(0, nic("0000:01:00.0", "<net/>"))), "topo.xml:3: <net> has neither a name nor a dev"),
        (h100_half()[:700], r"topo.xml:\d+: not XML: .* at column \d+; it ends too early"),
        (h100_half().replace("</gpu>", "", 1), r"topo.xml:\d+: not XML: mismatched tag at column \d+"),
        (h100_half().split("\n", 1)[1], "the root element is <cpu>|junk after document element"),
        ('<!DOCTYPE s [<!ENTITY a "b">]><system version="1"><cpu numaid="&a;"/></system>', "not XML: undefined entity"),
    ],
)  # fmt: skip
def test_errors_name_file_and_line(text, words):
    assert nccl_xml.matches(text)
    with pytest.raises(TopologyError, match=words):
        nccl_xml.read(text, "topo.xml")


def test_too_many_devices():
    gpus = [gpu(f"00{i:02x}:00:00.0") for i in range(257)]
    with pytest.raises(TopologyError, match="257 GPUs in one file; expected at most 256"):
        nccl_xml.read(system(cpu(0, *gpus)), "topo.xml")
    ports = "".join(net(f"p{i}", i) for i in range(257))
    with pytest.raises(TopologyError, match="257 network ports in one file; expected at most 256"):
        nccl_xml.read(system(cpu(0, nic("0000:01:00.0", ports))), "topo.xml")
    with pytest.raises(TopologyError, match="257 <cpu> in one file; expected at most 256"):
        nccl_xml.read(system(*(cpu(i) for i in range(257))), "topo.xml")
