"""NCCL topology files: devices and their numbers, PCIe, processors, facts, copies."""

from dataclasses import replace
from itertools import product

import pytest

from tests.topology import damage
from tests.topology.dumps import assert_said, each_of, expected
from tests.topology.readers.nccl.xml.reading import codes, read
from tests.topology.readers.nccl.xml.texts import TAG, cpu, gpu, h100_half, nic, nvlink, system
from topocomm.errors import TopologyError
from topocomm.topology.inference import nccl_paths
from topocomm.topology.model import Device
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


def test_every_cut_is_an_error():
    whole = h100_half().rstrip()
    for end in range(20, len(whole) - 1, 13):
        if nccl_xml.matches(whole[:end]):
            with pytest.raises(TopologyError, match=r"topo\.xml:"):
                nccl_xml.read(whole[:end], "topo.xml")


@pytest.mark.soak
@pytest.mark.parametrize(
    "text",
    [
        "<!--" * 250_000,
        "<system " * 120_000,
        '<system version="1">' * 50_000,
        "<cpu numaid" * 90_000,
        system(cpu(0, '<pci busid="0:0:0">' * 90, '<pci busid="0:0:0"/>' * 45_000, "</pci>" * 90)),
        system(cpu(0, more=f'affinity="{"ffffffff," * 100_000}"')),
        system(cpu(0, gpu("0:1:0", TAG, nvlink("0:2:0") * 20_000))),
        system(cpu(0, gpu("0:1:0", TAG, *(nvlink(f"{i:x}:2:0") for i in range(20_000))))),
        system(cpu(0, *(gpu(f"{i:x}:1:0") for i in range(256)), *(nic(f"{i:x}:2:0") for i in range(256)))),
    ],
)  # fmt: skip
def test_a_megabyte_is_read(text):
    damage.attempt(nccl_xml, text)


def from_devices(topology):
    """The facts that follow from devices and pairs, in the shapes of the expected ones."""
    gpus = [d for d in topology.devices if d.kind == "gpu"]
    codes = {f"{pair.a}-{pair.b}": pair.code for pair in topology.pairs}
    ends = {gpu.id for gpu in gpus}
    return {
        "gpus": len(gpus) or None,
        "busids": {gpu.id: gpu.bus_id for gpu in gpus},
        "numa_affinity": {gpu.id: gpu.numa for gpu in gpus},
        "links": {f"{p.a}-{p.b}": p.code for p in topology.pairs if p.b in ends} or None,
        "gpu_nic_links": {f"{p.a}-{p.b}": p.code for p in topology.pairs if p.b not in ends},
    } | {"codes": codes}


@each_of("nccl-topo-xml")
def test_facts(path):
    text, facts = path.read_text(), expected(path)
    assert nccl_xml.matches(text)
    try:
        topology = nccl_xml.read(text, str(path))
    except TopologyError:
        assert facts["malformed"]
        return
    assert not any(str(path.parent) in warning for warning in topology.warnings)
    found = {**topology.facts, **from_devices(topology)}
    if facts["nics"] is None:
        found["nics"] = found["nics"] or None
    near = facts.get("gpu_nic_links", {})
    if "gpu_nic_links_others" in facts:  # in words: PHB within a NUMA node, SYS across
        for gpu, nic in product((f"GPU{i}" for i in range(8)), facts["net_names"]):
            same = topology.by_id[gpu].numa == topology.by_id[nic].numa
            wanted = near.get(f"{gpu}-{nic}", "PHB" if same else "SYS")
            assert found["codes"][f"{gpu}-{nic}"] == wanted
    assert_said(found, facts, but={"malformed", "gpu_nic_links", "gpu_nic_links_others"})
    assert {pair: found["gpu_nic_links"].get(pair) for pair in near} == near
