"""NCCL topology files: devices and their numbers, PCIe, processors, facts, copies."""

from dataclasses import replace

import pytest

from tests.topology.readers.nccl.xml.reading import codes, links, read
from tests.topology.readers.nccl.xml.texts import AMD, GEN5, TAG, bridge, cpu, gpu, h100_half, nic, system
from topocomm.topology.inference import nccl_paths
from topocomm.topology.model import Device, Link
from topocomm.topology.readers.nccl.xml import nccl_xml
from topocomm.topology.readers.plain import topology_json


def test_whole_machine():
    topology = read(h100_half())
    assert (topology.name, topology.source, topology.warnings) == ("topo", "NCCL topology XML", ())
    assert topology.devices[:7] == (
        Device("GPU0", "gpu", "host0", None, 0, "0-3", "0000:07:00.0"),
        Device("GPU1", "gpu", "host0", None, 0, "0-3", "0000:27:00.0"),
        Device("GPU2", "gpu", "host0", None, 1, "4-7,32-35", "0000:87:00.0"),
        Device("mlx5_0", "nic", "host0", "mlx5_0", 0, None, "0000:08:00.0"),
        Device("mlx5_1", "nic", "host0", "mlx5_1", 0, None, "0000:28:00.0"),
        Device("mlx5_2", "switch", "host0", "network port mlx5_2", 0, None, "0000:28:00.0"),
        Device("numa0", "numa", "host0", None, 0, "0-3"),
    )
    assert topology.devices[8:] == (
        Device("pcie0", "switch", "host0", "PCIe switch", 0, None, "0000:05:00.0"),
        Device("pcie1", "switch", "host0", "PCIe switch", 0, None, "0000:25:00.0"),
        Device("pcie2", "switch", "host0", "PCIe switch", 0, None, "0000:26:00.0"),
        Device("adapter0", "switch", "host0", "network adapter", 0, None, "0000:28:00.0"),
        Device("host0", "host", "host0"),
        Device("nvswitch0", "switch", "host0", "NVSwitch", in_network="nvls"),
    )
    assert codes(topology) == {
        "GPU0-GPU1": "NV18",
        "GPU0-GPU2": "NV18",
        "GPU1-GPU2": "NV18",
        "GPU0-mlx5_0": "PIX",
        "GPU0-mlx5_1": "PHB",
        "GPU0-mlx5_2": "PHB",
        "GPU1-mlx5_0": "PHB",
        "GPU1-mlx5_1": "PXB",
        "GPU1-mlx5_2": "PXB",
        "GPU2-mlx5_0": "SYS",
        "GPU2-mlx5_1": "SYS",
        "GPU2-mlx5_2": "SYS",
    }


def test_figures_of_a_whole_machine():
    topology = read(h100_half())
    found = links(topology)
    assert found["GPU0", "nvswitch0"] == Link("GPU0", "nvswitch0", "nvlink", 18, 450.0, 0.3, None, "table", "assumed")
    assert found["pcie0", "GPU0"] == Link("pcie0", "GPU0", "pcie", None, 64.0, 0.5, None, "read", "assumed")
    assert found["GPU1", "pcie2"].gb_per_s == 32.0
    assert found["mlx5_1", "adapter0"] == Link(
        "mlx5_1", "adapter0", "network", None, 25.0, 0.0, None, "read", "assumed"
    )
    assert found["numa0", "host0"] == Link("numa0", "host0", "smp", None, 10.0, 0.3, None, "table", "assumed")
    pairs = {(p.a, p.b): (p.gb_per_s, p.gb_per_s_source, p.latency_us) for p in topology.pairs}
    assert pairs["GPU0", "GPU1"] == (450.0, "table", 0.6)
    assert pairs["GPU0", "mlx5_0"] == (64.0, "read", 1.0)
    assert pairs["GPU1", "mlx5_1"] == (25.0, "read", 1.2)
    assert pairs["GPU0", "mlx5_1"][2] == 1.4
    assert pairs["GPU2", "mlx5_0"] == (10.0, "table", 2.0)


def test_facts_of_a_whole_machine():
    facts = read(h100_half()).facts
    assert facts == {
        "xml_version": 1,
        "numa_nodes": 2,
        "gpu_tags": 3,
        "nics": 2,
        "gpu_rank": {"GPU0": 0, "GPU1": 1, "GPU2": 2},
        "sm": 90,
        "gpu_dev": {"GPU0": 0, "GPU1": 1, "GPU2": 2},
        "gdr_gpus": 2,
        "nic_busids": ["0000:08:00.0", "0000:28:00.0"],
        "net_names": ["mlx5_0", "mlx5_1", "mlx5_2"],
        "net_ports": 3,
        "net_elements": 3,
        "net_physical": ["mlx5_0", "mlx5_1", "mlx5_2"],
        "nic_numa": {"mlx5_0": 0, "mlx5_1": 0, "mlx5_2": 0},
        "net_speed_mbps": {"mlx5_0": 400000, "mlx5_1": 200000, "mlx5_2": 200000},
        "pci_devices": 8,
        "bridges": ["0000:05:00.0", "0000:25:00.0", "0000:26:00.0"],
        "pcie_groups": [["0000:07:00.0", "0000:08:00.0"], ["0000:27:00.0", "0000:28:00.0"]],
        "link_width": 16,
        "cpus": facts["cpus"],
        "cpu": "GenuineIntel 6/85 (Skylake)",
        "nvlink_total_per_gpu": {"GPU0": 18, "GPU1": 18, "GPU2": 18},
        "nvswitch": True,
        "nvswitch_busids": {"0000:1a:00.0": 9, "0000:1b:00.0": 9},
    }
    assert facts["cpus"][1]["affinity"] == "0000000f,000000f0"


def test_is_plain_json():
    topology = read(h100_half())
    assert topology_json.read(topology_json.dumps(topology), "x") == topology


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
    ("speed", "width", "gb_per_s", "source"),
    [
        ("2.5 GT/s", "16", 4.0, "read"),
        ("5 GT/s", "8", 4.0, "read"),
        ("8 GT/s", "16", 16.0, "read"),
        ("8.0 GT/s PCIe", "0x10", 16.0, "read"),
        ("16.0 GT/s PCIe", "4", 8.0, "read"),
        ("64.0 GT/s PCIe", "16", 120.0, "read"),
        ("", "0", 16.0, "assumed"),
        ("Unknown speed", "16", 16.0, "assumed"),
        ("16 GT/s", "0", 32.0, "assumed"),
        ("16 GT/s", "255", 32.0, "assumed"),
        ("16 GT/s", "", 32.0, "assumed"),
        ("16 GT/s", None, None, None),
        (None, "16", None, None),
    ],
)
def test_pcie_rate(speed, width, gb_per_s, source):
    given = [f'{key}="{text}"' for key, text in (("link_speed", speed), ("link_width", width)) if text is not None]
    topology = read(system(cpu(0, gpu("0000:01:00.0", TAG, link=" ".join(given)))))
    link = links(topology)["GPU0", "numa0"]
    assert (link.gb_per_s, link.gb_per_s_source) == (gb_per_s, source)
    assert len(topology.warnings) == (source == "assumed")


def test_virtual_port_that_says_gen2_above_gen5_devices():
    slow = bridge(
        "0000:05:00.0", gpu("0000:06:00.0", TAG, link=GEN5), link='link_speed="5.0 GT/s PCIe" link_width="16"'
    )
    topology = read(system(cpu(0, slow)))
    link = links(topology)["pcie0", "numa0"]
    assert (link.gb_per_s, link.gb_per_s_source) == (64.0, "assumed")
    assert "at most 5 GT/s above faster devices" in topology.warnings[0]


def test_slower_bridge_limits_its_device():
    topology = read(system(cpu(0, bridge("0000:05:00.0", gpu("0000:06:00.0", TAG, link=GEN5), nic("0000:07:00.0")))))
    assert links(topology)["pcie0", "numa0"].gb_per_s == 32.0
    assert topology.warnings == ()


def test_numa_numbers():
    topology = read(system(*(cpu(n, gpu(f"0000:0{i}:00.0"), more=AMD) for i, n in enumerate(("-1", "0x8", 0, None)))))
    assert [d.numa for d in topology.devices if d.kind == "gpu"] == [0, 8, 0, None]
    assert [d.id for d in topology.devices if d.kind == "numa"] == ["numa0", "numa8", "numa0.1", "numa"]
    assert set(codes(topology).values()) == {"SYS"}
    assert links(topology)["numa8", "host0"].gb_per_s == 16.0
    assert len(topology.warnings) == 3


def test_cpu_mask_that_lost_a_digit():
    masks = ("ffff0000,00000000", "fff0000,00000000", "0000zzzz,00000000")
    cpus = [cpu(i, gpu(f"0000:0{i}:00.0"), more=f'affinity="{mask}"') for i, mask in enumerate(masks)]
    topology = read(system(*cpus))
    assert [d.cpu_affinity for d in topology.devices if d.kind == "gpu"] == ["48-63", None, None]
    assert topology.facts["affinity_typo"] == {"cpu 1": "fff0000,... (7 hex digits: 12 CPUs instead of 16)"}
    assert len(topology.warnings) == 2


PASTES = {
    "prompt": lambda text: "$ cat topo.xml\n" + text + "$ \n",
    "crlf": lambda text: text.replace("\n", "\r\n"),
    "colours": lambda text: text.replace("<pci", "\x1b[1m<pci\x1b[0m"),
    "declaration": lambda text: "\ufeff<?xml version='1.0' encoding='latin-1'?>\n<!DOCTYPE system>\n" + text,
    "comments": lambda text: '<!-- a <system version="9"> -- here -->\n' + text.replace("<nic>", "<!-- port --><nic>"),
    "line numbers": lambda text: "\n".join(f"{i:4} {line}" for i, line in enumerate(text.split("\n"), 1)),
    "web page": lambda text: text.replace("<", "&lt;").replace(">", "&gt;"),
    "indent": lambda text: "    " + text.replace("\n", "\n    "),
    "unknown tags": lambda text: text.replace("</gpu>", '<future a="1"/></gpu>'),
}


@pytest.mark.parametrize("paste", PASTES.values(), ids=PASTES)
def test_copies_say_the_same(paste):
    assert read(paste(h100_half())) == read(h100_half())


def test_second_system_is_passed_over():
    topology = read(h100_half() + h100_half())
    assert topology.warnings == ("topo.xml:24: several files: a second <system> starts here; only the first is read",)
    assert replace(topology, warnings=()) == read(h100_half())


@pytest.mark.parametrize(
    "text",
    [
        "<topology version='2.0'><object/></topology>",
        '<graphs version="1"></graphs>',
        "{}",
        "\tGPU0\tGPU1\n",
        "=== System : maxBw 24.0 ===",
    ],
)
def test_other_formats_do_not_match(text):
    assert not nccl_xml.matches(text)


def test_codes_follow_from_links_alone():
    topology = read(h100_half())
    assert nccl_paths.pairs(replace(topology, pairs=())) == topology.pairs
