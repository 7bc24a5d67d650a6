from dataclasses import replace

import pytest

from tests.topology.nccl_xml.texts import AMD, GEN5, bridge, cpu, gpu, h100_half, net, nic, nvlink, system
from topocomm.topology import nccl_paths
from topocomm.topology.model import Device, Link
from topocomm.topology.readers import nccl_xml, topology_json

PLAIN = 'dev="0" sm="80" rank="0"'


def read(text):
    assert nccl_xml.matches(text)
    return nccl_xml.read(text, "/some/folder/topo.xml")


def codes(topology):
    return {f"{pair.a}-{pair.b}": pair.code for pair in topology.pairs}


def links(topology, kind=None):
    return {(x.src, x.dst): x for x in topology.links if kind is None or x.kind == kind}


def tags(count, links=(), more='sm="80"'):
    """GPUs `0000:0<i>:00.0` under one processor; `links[i]` holds the link elements of GPU i."""
    every = [*links, *[""] * (count - len(links))]
    return system(cpu(0, *(gpu(f"0000:0{i}:00.0", f'dev="{i}" rank="{i}" {more}', every[i]) for i in range(count))))


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
    topology = read(system(cpu(0, gpu("0000:01:00.0", PLAIN), gpu("0000:02:00.0"))))
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
    topology = read(system(cpu(0, gpu("0000:01:00.0", PLAIN, link=" ".join(given)))))
    link = links(topology)["GPU0", "numa0"]
    assert (link.gb_per_s, link.gb_per_s_source) == (gb_per_s, source)
    assert len(topology.warnings) == (source == "assumed")


def test_virtual_port_that_says_gen2_above_gen5_devices():
    slow = bridge(
        "0000:05:00.0", gpu("0000:06:00.0", PLAIN, link=GEN5), link='link_speed="5.0 GT/s PCIe" link_width="16"'
    )
    topology = read(system(cpu(0, slow)))
    link = links(topology)["pcie0", "numa0"]
    assert (link.gb_per_s, link.gb_per_s_source) == (64.0, "assumed")
    assert "at most 5 GT/s above faster devices" in topology.warnings[0]


def test_slower_bridge_limits_its_device():
    topology = read(system(cpu(0, bridge("0000:05:00.0", gpu("0000:06:00.0", PLAIN, link=GEN5), nic("0000:07:00.0")))))
    assert links(topology)["pcie0", "numa0"].gb_per_s == 32.0
    assert topology.warnings == ()


def test_nvlinks_to_peers_itself_and_elsewhere():
    topology = read(
        tags(
            3,
            [
                nvlink("0000:01:00.0", 4) + nvlink("0000:00:00.0", 2),
                nvlink("0000:00:00.0", 4) + nvlink("0000:77:00.0", 1),
                nvlink("fffffff:ffff:ff", 0, None),
            ],
        )
    )
    assert codes(topology) == {"GPU0-GPU1": "NV4", "GPU0-GPU2": "PHB", "GPU1-GPU2": "PHB"}
    assert links(topology, "nvlink").keys() == {("GPU0", "GPU1"), ("GPU1", "GPU0")}
    assert links(topology)["GPU1", "GPU0"].gb_per_s == 100.0
    assert topology.facts["self_nvlinks"] == {"GPU0": 2}
    assert topology.facts["nvlink_total_per_gpu"] == {"GPU0": 4, "GPU1": 5, "GPU2": 0}
    assert topology.facts["missing_pairs"] == ["GPU0-GPU2", "GPU1-GPU2"]
    assert [w.split(": ", 1)[1] for w in topology.warnings] == [
        "GPU0: NVLinks of a GPU to itself say nothing of its peers; passed over",
        "GPU1 to 0000:77:00.0: links to a device that is not in the file, passed over",
    ]


def test_what_one_gpu_does_not_list_is_taken_from_the_other():
    topology = read(tags(2, [nvlink("0000:01:00.0", 4)]))
    assert codes(topology) == {"GPU0-GPU1": "NV4"}
    assert links(topology)["GPU1", "GPU0"].lanes == 4
    assert topology.warnings == (
        "topo.xml:4: GPU0-GPU1: only the first lists its links to the other; the mirror is added",
    )


def test_counts_that_contradict_each_other_make_no_code():
    topology = read(tags(2, [nvlink("0000:01:00.0", 4), nvlink("0000:00:00.0", 3)]))
    assert codes(topology) == {"GPU0-GPU1": None}
    assert [link.lanes for link in links(topology, "nvlink").values()] == [4, 3]
    assert "different numbers of links" in topology.warnings[0]


@pytest.mark.parametrize("target", ["fffffff:ffff:ff", "fffffff:ff:ff.0", "FFFFFFF:FFFF:FF"])
def test_hidden_switch(target):
    topology = read(tags(2, [nvlink(target, 12, None)] * 2))
    assert codes(topology) == {"GPU0-GPU1": "NV12"}
    assert topology.by_id["nvswitch0"].in_network is None  # A100
    assert topology.facts["nvswitch_busids"] == {target: 12}


def test_switch_that_gpus_reach_by_different_numbers_of_links():
    topology = read(tags(2, [nvlink("0000:c1:00.0", n, "0x068000") for n in (12, 10)]))
    assert [(p.code, p.gb_per_s) for p in topology.pairs] == [("NV10", 250.0)]
    assert topology.facts["nvswitch_busids"] == {"0000:c1:00.0": {"GPU0": 12, "GPU1": 10}}


@pytest.mark.parametrize(
    ("sm", "gb_per_s"),
    [(60, 20.0), (70, 25.0), (75, 25.0), (80, 25.0), (86, 14.0625), (90, 25.0), (100, 50.0), (103, 50.0), (89, None)],
)
def test_nvlink_generation_by_sm(sm, gb_per_s):
    both = [nvlink("0000:01:00.0"), nvlink("0000:00:00.0")]
    assert read(tags(2, both, f'sm="{sm}"')).pairs[0].gb_per_s == gb_per_s


@pytest.mark.parametrize(
    ("gcn", "gb_per_s"),
    [("906", None), ("908", 46.0), ("910", 50.0), ("gfx90a", 50.0), ("942", 64.0), ("gfx942", 64.0), ("gfx950", 76.5)],
)
def test_xgmi_generation_by_gcn(gcn, gb_per_s):
    both = [nvlink(f"0000:0{i}:00.0", 1, "0x038000", "xgmi") for i in (1, 0)]
    topology = read(tags(3, both, f'sm="304" gcn="{gcn}"').replace('version="1"', 'version="2"'))
    assert (topology.pairs[0].code, topology.pairs[0].gb_per_s) == ("XGMI1", gb_per_s)
    facts = topology.facts
    assert (facts["xml_version"], facts["gcn"], facts["compute_units"]) == (2, gcn, 304)
    assert facts["xgmi_total_per_gpu"] == {"GPU0": 1, "GPU1": 1, "GPU2": 0}
    assert facts["xgmi_components"] == [[0, 1], [2]]
    assert "sm" not in facts


def test_c2c_and_nvlink_to_the_processor():
    inside = gpu("0009:01:00.0", 'dev="0" sm="90" rank="0"', '<c2c bw="44712" count="10"/>', link=GEN5)
    topology = read(system(cpu(0, inside, nic("0002:01:00.0", net("mlx5_0", 0)), more='arch="arm64"')))
    assert links(topology, "c2c")["GPU0", "numa0"] == Link(
        "GPU0", "numa0", "c2c", 10, 447.12, 0.7, None, "read", "assumed"
    )
    assert codes(topology) == {"GPU0-mlx5_0": "PHB"}
    power = gpu("0004:04:00.0", 'dev="0" sm="70" rank="0"', nvlink("0004:00:00.0", 3, "0x068001"))
    topology = read(system(cpu(0, power, more='arch="ppc64"'), cpu(8, more='arch="ppc64"')))
    assert links(topology, "nvlink")["GPU0", "numa0"].gb_per_s == 75.0
    assert topology.facts["nvlink_total_per_gpu"] == {"GPU0": 3}
    assert links(topology)["numa8", "host0"].gb_per_s == 32.0


def test_numa_numbers():
    topology = read(system(*(cpu(n, gpu(f"0000:0{i}:00.0"), more=AMD) for i, n in enumerate(("-1", "0x8", 0, None)))))
    assert [d.numa for d in topology.devices if d.kind == "gpu"] == [0, 8, 0, None]
    assert [d.id for d in topology.devices if d.kind == "numa"] == ["numa0", "numa8", "numa0.1", "numa"]
    assert set(codes(topology).values()) == {"SYS"}
    assert links(topology)["numa8", "host0"].gb_per_s == 16.0
    assert len(topology.warnings) == 3


def test_nics_without_pci_device():
    """One that is listed under several processors is one NIC, near to all of them; it joins nothing."""
    docker = "<nic>" + net("docker0", 1, 10000) + "</nic>"
    eth = "<nic>" + net("eth0", 0, -1) + "</nic>"
    text = system(
        cpu(0, gpu("0000:01:00.0", PLAIN), eth, docker),
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
    topology = read(system(cpu(0, gpu("0000:01:00.0", PLAIN), *ports, again, gin)))
    assert topology.facts["net_names"] == ["a", "b", "a@0000:12:00.0", "c"]
    assert topology.facts["net_speed_mbps"] == 200000000
    assert links(topology)["c", "adapter0"].gb_per_s == 25.0
    assert topology.warnings == ("topo.xml:6: a, b, c: a speed beyond any port; read as kb/s instead of Mb/s",)


def test_cpu_mask_that_lost_a_digit():
    masks = ("ffff0000,00000000", "fff0000,00000000", "0000zzzz,00000000")
    cpus = [cpu(i, gpu(f"0000:0{i}:00.0"), more=f'affinity="{mask}"') for i, mask in enumerate(masks)]
    topology = read(system(*cpus))
    assert [d.cpu_affinity for d in topology.devices if d.kind == "gpu"] == ["48-63", None, None]
    assert topology.facts["affinity_typo"] == {"cpu 1": "fff0000,... (7 hex digits: 12 CPUs instead of 16)"}
    assert len(topology.warnings) == 2


def test_several_hosts():
    """The GPUs of one NVLink domain: ranks number them, processors and NICs carry their host."""

    def host(i):
        inside = [
            gpu(f"0008:0{j}:00.0", f'dev="{j}" sm="100" rank="{2 * i + j}"', nvlink("fffffff:ffff:ff", 18))
            for j in (0, 1)
        ]
        return cpu(0, *inside, nic("0000:03:00.0", net("mlx5_0", 0)), more=f'host_hash="0x{i}a" arch="arm64"')

    topology = read(system(host(0), host(1)))
    assert [d.id for d in topology.devices] == [
        *("GPU0", "GPU1", "GPU2", "GPU3", "host0/mlx5_0", "host1/mlx5_0", "host0/numa0", "host1/numa0", "nvswitch0")
    ]
    assert topology.hosts == ("host0", "host1")
    assert {code for pair, code in codes(topology).items() if "mlx5" not in pair} == {"NV18"}
    assert codes(topology)["GPU0-host0/mlx5_0"] == "PHB"
    assert codes(topology)["GPU0-host1/mlx5_0"] is None


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


def test_fused_ports_at_a_switch():
    """NCCL puts ports that it fused under the switch that their cards share."""
    fused = "<nic>" + net("mlx5_0+mlx5_1", 0, 800000) + "</nic>"
    topology = read(
        system(cpu(0, bridge("0000:05:00.0", fused, gpu("0000:06:00.0", PLAIN)), gpu("0000:07:00.0", 'dev="1"')))
    )
    assert codes(topology) == {"GPU0-GPU1": "PHB", "GPU0-mlx5_0+mlx5_1": "PIX", "GPU1-mlx5_0+mlx5_1": "PHB"}
