"""`nvidia-smi topo -m` and `lspci -tv` of one machine: addresses from one, NUMA nodes from the other."""

import pytest

from tests.topology.export import consumer
from tests.topology.matrices import facts_of, render_tabs
from tests.topology.readers.pci.trees import A100, CX6, draw
from topocomm.errors import TopologyError
from topocomm.topology.export.nccl_xml_writer import render
from topocomm.topology.merge.captures import combine
from topocomm.topology.readers.nvidia import nvidia_smi
from topocomm.topology.readers.pci import lspci

CPUS = ("0-15", "16-31")


def switch(first, *names):
    """A switch below a root port: its own address is first:00.0, devices are on the buses from first + 2 on."""
    below = {f"0{i}.0": (f"{first + 2 + i:02x}", {"00.0": name}) for i, name in enumerate(names)}
    last = first + 1 + len(names)
    return f"{first:02x}-{last:02x}", {"00.0": (f"{first + 1:02x}-{last:02x}", below)}


def tree():
    """Two sockets: on each a switch with a GPU and a card, and a GPU on a root port of another host bridge."""
    return draw(
        {
            "0000:10": {"01.0": switch(0x11, A100, CX6)},
            "0000:20": {"01.0": ("21", {"00.0": A100})},
            "0000:80": {"01.0": switch(0x81, A100, CX6)},
            "0000:90": {"01.0": ("91", {"00.0": A100})},
            "0000:a0": {"01.0": ("a1", {"00.0": "Intel Corporation Ethernet Controller X710 for 10GBASE-T"})},
        }
    )


def code(a, b):
    """By columns: GPU0-3, mlx5_0 beside GPU0, mlx5_1 beside GPU2."""
    if b > 3 and a == 2 * (b - 4):
        return "PIX"
    sockets = [(x // 2 if x < 4 else x - 4) for x in (a, b)]
    return "NODE" if sockets[0] == sockets[1] else "SYS"


def matrix(nics=("mlx5_0", "mlx5_1"), numas=("0", "0", "1", "1")):
    names = [f"GPU{i}" for i in range(4)]
    columns = {"numa": dict(zip(names, numas, strict=True)), "cpu": {n: CPUS[i // 2] for i, n in enumerate(names)}}
    return nvidia_smi.read(render_tabs(facts_of(4, code, nics=list(nics), **columns)), "m.txt")


def both(order, **given):
    found = [matrix(**given), lspci.read(tree(), "l.txt")]
    return combine(found[::order])


@pytest.mark.parametrize("order", [1, -1])
def test_every_gpu_has_its_numa_node_and_address(order):
    found = both(order)
    gpus = [d for d in found.devices if d.kind == "gpu"]
    assert [(d.bus_id, d.numa) for d in gpus] == [
        ("0000:13:00.0", 0),
        ("0000:21:00.0", 0),
        ("0000:83:00.0", 1),
        ("0000:91:00.0", 1),
    ]
    seen = consumer.load(render(found))
    assert [cpu.get("numaid") for cpu in seen.fused.findall("cpu")] == ["0", "1"]
    assert seen.code("0000:13:00.0", "0000:21:00.0") == "PHB"
    assert seen.code("0000:13:00.0", "0000:83:00.0") == "SYS"
    assert seen.twice() == set()


@pytest.mark.parametrize("order", [1, -1])
def test_cards_are_joined_by_the_gpus_that_share_their_switch(order):
    """So they stand in the file below the switch's own address, where NCCL sees them beside the GPU."""
    found = both(order)
    cards = {d.bus_id: d for d in found.devices if d.kind == "nic"}
    names = [next(p for p in found.pairs if p.a == f"GPU{2 * i}" and p.b == cards[bus].id).code for i, bus in CARDS]
    assert names == ["PIX", "PIX"]
    text = render(found)
    seen = consumer.load(text)
    assert [cards[bus].name for _, bus in CARDS] == ["mlx5_0", "mlx5_1"]
    assert seen.code("0000:13:00.0", "0000:14:00.0") == "PIX"
    assert 'busid="0000:11:00.0" class="0x060400"' in text
    assert len(cards) == 3 and None not in cards


CARDS = ((0, "0000:14:00.0"), (1, "0000:84:00.0"))


@pytest.mark.parametrize("order", [1, -1])
def test_bridges_with_addresses_go_before_a_tree_of_codes(order):
    """The matrix joins more cards, but a switch of a made-up address is not where NCCL finds the cards."""
    text = render(both(order, nics=("mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3")))
    assert 'busid="0000:11:00.0" class="0x060400"' in text
    assert "ffff:ff" not in text
    assert "mlx5_2, mlx5_3" in text.partition("-->")[0]


@pytest.mark.parametrize(
    ("names", "vendor"),
    [
        (("Intel Corporation Device 09a2",) * 2, "GenuineIntel"),
        (("Advanced Micro Devices, Inc. [AMD] Device 14a4",) * 2, "AuthenticAMD"),
        (("Intel Corporation Device 09a2", "Advanced Micro Devices, Inc. [AMD] Device 14a4"), ""),
        (("Ampere Computing, LLC Device e100",) * 2, ""),
    ],
)
def test_root_complexes_tell_whose_processors_they_are(names, vendor):
    roots = {f"000{i}:00": {"00.0": name, "01.0": switch(0x11, A100, A100)} for i, name in enumerate(names)}
    found = combine([lspci.read(draw(roots), "l.txt"), matrix(nics=())])
    cpus = consumer.ET.fromstring(render(found)).findall("cpu")
    assert [(cpu.get("arch", ""), cpu.get("vendor", "")) for cpu in cpus] == [("x86_64" if vendor else "", vendor)] * 2


def test_a_card_on_a_host_bridge_without_gpus_is_left_out():
    head = render(both(1)).partition("-->")[0]
    assert "Left out: 0000:a1:00.0, whose place on PCI is not known; NCCL finds NICs itself." in head


def test_codes_of_the_combined_tree_are_those_of_the_matrix():
    from topocomm.topology.inference import nccl_paths

    found = both(1, nics=())
    derived = {(p.a, p.b): p.code for p in nccl_paths.pairs(found, wording="nvidia-smi")}
    own = {(p.a, p.b): p.code for p in matrix(nics=()).pairs}
    assert {pair: derived[pair] for pair in own} == own


def test_one_host_bridge_is_taken_apart_where_its_gpus_are_of_two_nodes():
    """A virtual machine shows all devices on one; NCCL asks each device for its node."""
    ports = {f"0{i}.0": (f"0{i}", {"00.0": A100}) for i in range(1, 5)}
    found = combine([matrix(nics=()), lspci.read(draw({"0000:00": ports}), "l.txt")])
    seen = consumer.load(render(found))
    assert seen.code("0000:01:00.0", "0000:02:00.0") == "PHB"
    assert seen.code("0000:01:00.0", "0000:03:00.0") == "SYS"


@pytest.mark.parametrize("numas", [("0", "0", "1", "N/A"), ("0", "1", "0", "1")])
def test_nodes_that_are_not_known_or_cut_a_switch_are_not_made(numas):
    below = {"01.0": switch(0x11, A100, A100), "02.0": switch(0x21, A100, A100)}
    tree = lspci.read(draw({"0000:10": {"01.0": below["01.0"]}, "0000:20": {"01.0": below["02.0"]}}), "l.txt")
    found = combine([tree, matrix(nics=(), numas=numas)])
    with pytest.raises(TopologyError, match="no PCIe link leads to a NUMA node"):
        render(found)
