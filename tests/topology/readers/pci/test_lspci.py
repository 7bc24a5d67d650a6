"""Trees of `lspci -tv`: codes, what counts as a GPU and as a NIC, what is damaged."""

import pytest

from tests.topology import damage
from tests.topology.dumps import each_of, expected
from tests.topology.readers.hwloc.facts import assert_facts, codes_of
from tests.topology.readers.pci.trees import A100, CX6, draw, server
from topocomm.errors import TopologyError
from topocomm.topology.readers.pci import lspci
from topocomm.topology.readers.pci.lspci import is_gpu, is_nic, nic_model


@each_of("lspci-tv")
def test_shared_dumps(path):
    assert_facts(lspci.read(path.read_text(), str(path)), expected(path))


def test_server():
    topology = lspci.read(server(), "folder/box.txt")
    assert (topology.name, topology.source) == ("box", "lspci -tv")
    pairs = {
        "GPU0-GPU1": "PIX",
        "GPU0-GPU2": "PHB",
        "GPU1-GPU2": "PHB",
        "GPU3-GPU4": "PIX",
        "GPU3-GPU5": "PHB",
        "GPU4-GPU5": "PHB",
    }
    assert_facts(
        topology,
        {
            "gpus": 6,
            "nics": 3,
            "nic_functions": 5,
            "gpu_busids": [f"000{domain}:0{bus}:00.0" for domain in (0, 1) for bus in (3, 4, 7)],
            "nic_busids": {"ConnectX-6": ["0000:05:00.0", "0001:05:00.0"], "I350": ["0001:80:05.0"]},
            "host_bridges": 3,
            "gpu_root": {f"000{d}:0{bus}:00.0": f"000{d}:00" for d in (0, 1) for bus in (3, 4, 7)},
            "links": {f"GPU{a}-GPU{b}": pairs.get(f"GPU{a}-GPU{b}") for a in range(6) for b in range(a + 1, 6)},
            "numa_nodes": None,
        },
    )
    assert {p.a: p.code for p in topology.pairs if p.b == "0000:05:00.0"} == {
        "GPU0": "PIX",
        "GPU1": "PIX",
        "GPU2": "PHB",
        "GPU3": None,
        "GPU4": None,
        "GPU5": None,
    }
    assert topology.warnings == (
        "box.txt: no NUMA nodes in this text; devices below different host bridges have no code",
    )


def test_ids_in_brackets_and_pastes():
    plain = lspci.read(server(), "x.txt")
    ids = lspci.read(server(f"{A100} [10de:20b5]", f"{CX6} [15b3:101b]"), "x.txt")
    assert (ids.devices, ids.facts) == (plain.devices, plain.facts)
    indented = "".join(f"    {line}\n" for line in server().splitlines())
    for text in ("$ lspci -tv\n" + server() + "$ \n", server().replace("\n", "\r\n"), indented):
        assert lspci.matches(text)
        assert lspci.read(text, "x.txt").devices == plain.devices


def test_one_host_bridge_and_one_device_a_bus():
    text = draw({"0000:00": {"01.0": ("01", {"00.0": A100}), "02.0": ("02", {"00.0": A100})}})
    assert text.startswith("-[0000:00]-+-01.0-[01]----00.0  NVIDIA")
    assert lspci.matches(text)
    assert codes_of(lspci.read(text, "x.txt")) == {"GPU0-GPU1": "PHB"}


def test_two_levels_of_switches_are_pxb():
    leaf = {"00.0": ("12-14", {"00.0": ("13", {"00.0": A100}), "01.0": ("14", {"00.0": A100})})}
    other = {"00.0": ("22-23", {"00.0": ("23", {"00.0": A100})})}
    tree = {"00.0": ("10-2f", {"00.0": ("11-1f", leaf), "01.0": ("21-2f", other)})}
    topology = lspci.read(draw({"0000:00": {"00.0": "Host", "01.0": ("01-2f", tree)}}), "x.txt")
    assert codes_of(topology) == {"GPU0-GPU1": "PIX", "GPU0-GPU2": "PXB", "GPU1-GPU2": "PXB"}


def test_a_bridge_with_several_buses_and_detail_lines():
    text = f"""\
-+-[10000:e0]-+-00.0  Intel Corporation Device 09ab
 |            \\-02.0-[e1]----00.0  {A100}
 |                            Memory at e0000000 (64-bit, prefetchable) [size=32M]
 \\-[0000:00]-+-00.0-[01-03]--+-[0000:02]---00.0  {A100}
             |               \\-[0000:01]-+-00.0  {CX6}
             |                           \\-01.0  {CX6}
             \\-1f.0  Intel Corporation C620 LPC
"""
    topology = lspci.read(text, "x.txt")
    assert topology.facts["gpu_busids"] == ["0000:02:00.0", "10000:e1:00.0"]
    assert topology.facts["host_bridges"] == 2
    assert topology.facts["nic_functions"] == 2


@pytest.mark.parametrize(
    ("name", "gpu", "nic"),
    [
        ("NVIDIA Corporation Device 2330", True, False),
        ("NVIDIA Corporation GH100 [H100 SXM5 80GB] [10de:2330]", True, False),
        ("NVIDIA Corporation Device 22a3", False, False),
        ("NVIDIA Corporation GH100 [H100 NVSwitch]", False, False),
        ("NVIDIA Corporation Device [10de:1af1]", False, False),
        ("NVIDIA Corporation TU104 USB 3.1 Host Controller", False, False),
        ("NVIDIA Corporation GA102 High Definition Audio Controller", False, False),
        ("Advanced Micro Devices, Inc. [AMD/ATI] Aldebaran/MI200 [Instinct MI250X/MI250]", True, False),
        ("Advanced Micro Devices, Inc. [AMD/ATI] Device 74a1", True, False),
        ("Advanced Micro Devices, Inc. [AMD/ATI] Navi 21/23 HDMI/DP Audio Controller", False, False),
        ("Advanced Micro Devices, Inc. [AMD] Device 14a4", False, False),
        ("ASPEED Technology, Inc. ASPEED Graphics Family", False, False),
        ("Matrox Electronics Systems Ltd. Integrated Matrox G200eW3 Graphics Controller", False, False),
        ("Intel Corporation UHD Graphics 630 (Desktop)", False, False),
        ("Samsung Electronics Co Ltd NVMe SSD Controller S4LV008[Pascal]", False, False),
        ("Mellanox Technologies MT2910 Family [ConnectX-7]", False, True),
        ("Mellanox Technologies MT28908 Family [ConnectX-6 Virtual Function]", False, False),
        ("Mellanox Technologies MT42822 BlueField-2 SoC Management Interface", False, False),
        ("Broadcom Inc. and subsidiaries BCM57508 NetXtreme-E 10Gb/25Gb/40Gb/50Gb/100Gb/200Gb Ethernet", False, True),
        ("Intel Corporation Ethernet Controller E810-C for QSFP", False, True),
        ("Intel Corporation Wi-Fi 6 AX200", False, False),
        ("Amazon.com, Inc. Elastic Fabric Adapter (EFA)", False, True),
    ],
)
def test_names(name, gpu, nic):
    assert (is_gpu(name), is_nic(name)) == (gpu, nic)


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("Mellanox Technologies MT2892 Family [ConnectX-6 Dx] [15b3:101d]", "ConnectX-6 Dx"),
        ("Intel Corporation Ethernet Controller X710 for 10GBASE-T", "X710"),
        ("Intel Corporation I350 Gigabit Network Connection", "I350"),
        ("Intel Corporation 82599ES 10-Gigabit SFI/SFP+ Network Connection", "82599ES"),
        ("Broadcom Inc. and subsidiaries NetXtreme BCM5720 2-port Gigabit Ethernet PCIe", "BCM5720"),
        ("Mellanox Technologies Device 1021", "Device 1021"),
    ],
)
def test_models_of_nics(name, model):
    assert nic_model(name) == model


def test_virtual_functions_and_graphics_inside_the_cpu_are_no_gpus():
    a40 = "NVIDIA Corporation GA102GL [A40]"
    inside = "Advanced Micro Devices, Inc. [AMD/ATI] Raphael"
    tree = {
        "01.0": ("01", {"00.0": a40, "00.4": a40, "00.5": a40, "01.0": a40, "02.0": a40}),
        "08.0": ("02", {"00.0": inside}),
    }
    assert lspci.read(draw({"0000:00": tree}), "x.txt").facts["gpu_busids"] == ["0000:01:00.0"]
    assert lspci.read(draw({"0000:00": {"08.0": ("02", {"00.0": inside})}}), "x.txt").facts["gpu_busids"] == [
        "0000:02:00.0"
    ]


TREE = server()
LINES = TREE.splitlines()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\n".join(LINES[:-1]), r"x\.txt:19: the tree ends here, but branches are open"),
        ("\n".join(LINES[:9]), r"x\.txt:9: the tree ends here"),
        ("\n".join(LINES[:3] + LINES[4:8] + LINES[9:]), r"x\.txt:\d+: "),
        (TREE.replace(" |           ", " | ", 1), r"x\.txt:2: a branch opened at column 14 is not closed"),
        (TREE.replace(" |  ", "    ", 1), r"x\.txt:2: the bars left of column 14"),
        (TREE.replace("04.0-[04]", "00.0-[04]", 1), r"x\.txt:3: device 00\.0 on bus 0000:02 is out of order"),
        (TREE.replace("-[04]-", "-[44]-", 1), r"outside of its parent's"),
        (TREE.replace("0001:80", "0001:00"), r"root bus 0001:00 is there twice"),
        (TREE.replace("04.0-[04]", "zz.0-[04]", 1), r"is no device such as `01\.1`"),
        ("lspci: nothing\n", r"x\.txt:1: no root bus such as"),
        ("-[0000:00]-+-00.0\n           \\-01.0\n", "devices without names; use `lspci -tv`"),
        ("-[0000:00]-+-00.0  10de:20b5\n           \\-01.0  8086:1521\n", "devices without names"),
        (TREE.replace(LINES[6], "...", 1), r"x\.txt:7: '\.\.\.' is no branch of the tree"),
    ],
)
def test_damage(text, message):
    with pytest.raises(TopologyError, match=message):
        lspci.read(text, "x.txt")


def test_more_gpus_than_a_host_has():
    many = {f"{i:02x}.{j}": ("01", {"00.0": A100}) for i in range(32) for j in range(8)}
    with pytest.raises(TopologyError, match="512 GPUs in one host; expected at most 256"):
        lspci.read(draw({"0000:00": many, "0001:00": many}), "x.txt")


@pytest.mark.soak
@pytest.mark.parametrize(
    "text",
    [
        "-+-[0000:00]-+-00.0  x\n" + " |           +-01.0-[01]----00.0  NVIDIA Corporation GA100\n" * 16_000,
        "-" * 1_000_000,
        " |" * 500_000,
        ("-[0000:00]" + "-00.0-[01]---" * 70_000),
        "-[0000:00]-" + "+-" * 400_000,
        "\n".join(["-[0000:00]-+-00.0"] * 50_000),
    ],
    ids=["lines", "dashes", "bars", "chain", "branches", "roots"],
)
def test_a_megabyte_is_read(text):
    damage.attempt(lspci, text)


def test_mutations_give_no_other_exception_and_no_other_gpu():
    known = set(lspci.read(TREE, "x.txt").facts["gpu_busids"])
    more = damage.of_a_line(damage.put(["", " ", "  ", "|", "+-", "\\-", "["], [0]))
    changes = [damage.swap_lines, damage.cut_line, more, damage.lose_lines()]
    read, _ = damage.attempts(lspci, [TREE, TREE.rstrip()], changes, seed=5, times=400, most=2)
    assert read
    assert all(set(found.facts["gpu_busids"]) <= known for found in read)


PREFIXES = ["> ", ">", "> > ", ">> ", " > ", "2025-03-04 10:11:12 INFO ", "0: ", "[1,0]<stdout>:", "node| ", "# "]


@pytest.mark.parametrize("prefix", PREFIXES)
def test_prefix_on_every_line(prefix):
    text = "".join(prefix + line for line in server().splitlines(True))
    assert lspci.matches(text)
    assert lspci.read(text, "box.txt") == lspci.read(server(), "box.txt")


def test_line_numbers():
    text = "".join(f"{i:6d}\t{line}" for i, line in enumerate(server().splitlines(True), 1))
    assert lspci.matches(text)
    assert lspci.read(text, "box.txt") == lspci.read(server(), "box.txt")


def test_quoted_with_text_around():
    tree = "".join(f"> {line}" for line in server().splitlines(True))
    text = f"On Monday somebody wrote:\n> The tree:\n> $ lspci -tv\n{tree}>\n> Regards\n\nThanks!\n"
    assert lspci.read(text, "box.txt") == lspci.read(server(), "box.txt")


def test_blanks_of_a_web_page():
    text = server().replace("  ", "&nbsp; ")
    indented = "".join(f"&nbsp;&nbsp;{line}" for line in text.splitlines(True))
    assert lspci.matches(indented)
    assert lspci.read(indented, "box.txt") == lspci.read(server(), "box.txt")


def test_lines_run_together():
    """The name of the upper line would have the lower one in it."""
    lines = server().splitlines(True)
    joined = refused = 0
    for i in range(1, len(lines) - 1):
        text = "".join([*lines[:i], lines[i].rstrip("\n"), *lines[i + 1 :]])
        joined += 1
        with pytest.raises(TopologyError):
            lspci.read(text, "box.txt")
        refused += 1
    assert joined == refused > 5
