import re
from dataclasses import replace

import pytest

from tests.topology.dumps import each_of
from tests.topology.inference.test_nccl_paths import MATRICES
from tests.topology.matrices import facts_of, render_tabs
from tests.topology.readers.nccl.xml.texts import GEN5, bridge, cpu, gpu, h100_half, net, nic, nvlink, system
from topocomm.errors import TopologyError
from topocomm.topology.catalog.systems import catalog
from topocomm.topology.export.nccl_xml_writer import render
from topocomm.topology.inference import nccl_paths
from topocomm.topology.model import Topology
from topocomm.topology.readers.nccl.xml import nccl_xml
from topocomm.topology.readers.nvidia import nvidia_smi

GH200 = system(
    cpu(
        0,
        gpu("0009:01:00.0", 'dev="0" sm="90" rank="0"', '<c2c bw="44712" count="10"/>', link=GEN5),
        nic("0002:03:00.0", net("mlx5_0", 0, 400000)),
        more='arch="arm64"',
    )
)
POWER9 = system(
    *(
        cpu(
            8 * i,
            gpu(
                f"000{4 + i}:04:00.0",
                f'dev="{i}" sm="70" rank="{i}"',
                nvlink("0004:00:00.0", 3, "0x068001"),
            ),
            more='arch="ppc64"',
        )
        for i in range(2)
    )
)
MI300 = system(
    cpu(
        0,
        *(
            bridge(
                f"0000:{i}0:00.0",
                gpu(
                    f"0000:{i}1:00.0",
                    f'dev="{i}" sm="304" gcn="gfx942" rank="{i}"',
                    *(nvlink(f"0000:{j}1:00.0", 1, "0x120000", "xgmi") for j in range(4) if j != i),
                ),
            )
            for i in range(4)
        ),
    ),
    version="2",
)
VIRTUAL = system(
    cpu(3, gpu("0000:01:00.0", 'dev="0" sm="89" rank="0"'), "<nic>" + net("tunl0", 1) + "</nic>"),
    cpu(1, gpu("0000:02:00.0", 'dev="4" sm="89" rank="1"'), "<nic>" + net("tunl0", 1) + net("eth0", 0) + "</nic>"),
)
MACHINES = {"h100": h100_half(), "gh200": GH200, "power9": POWER9, "mi300": MI300, "virtual NICs": VIRTUAL}


def figures(topology):
    return {(p.a, p.b): (p.code, p.gb_per_s) for p in topology.pairs}


def links(topology):
    return sorted((x.kind, x.lanes or 0, x.gb_per_s or 0.0) for x in topology.links)


def comes_back(topology):
    again = nccl_xml.read(render(topology), "again")
    assert figures(again) == figures(topology)
    assert links(again) == links(topology)
    return again


@pytest.mark.parametrize("text", MACHINES.values(), ids=MACHINES)
def test_round_trip(text):
    topology = nccl_xml.read(text, "machine.xml")
    again = comes_back(topology)
    ends = {(d.id, d.bus_id, d.numa) for d in topology.devices if d.kind in ("gpu", "nic")}
    assert ends == {(d.id, d.bus_id, d.numa) for d in again.devices if d.kind in ("gpu", "nic")}
    assert again.warnings == ()


@each_of("nccl-topo-xml")
def test_round_trip_of_a_real_file(path):
    topology = nccl_xml.read(path.read_text(), path.name)
    if topology.endpoints:
        comes_back(topology)
    else:
        with pytest.raises(TopologyError, match="no GPU"):
            render(topology)


def with_bus_ids(topology):
    """The same machine with an address of every GPU and NIC, as another tool would add."""
    ends = [d.id for d in topology.devices if d.kind in ("gpu", "nic")]
    return replace(
        topology,
        devices=tuple(
            d._replace(bus_id=f"0000:{ends.index(d.id):02x}:00.0", name=d.name and d.id) if d.id in ends else d
            for d in topology.devices
        ),
    )


@pytest.mark.parametrize("name", MATRICES)
def test_matrix_with_bus_ids(name):
    """Codes of `nvidia-smi topo -m` in NCCL's wording; what has no bus id below a processor gets a made-up one."""
    topology = with_bus_ids(nvidia_smi.read(render_tabs(MATRICES[name]), "matrix.txt"))
    if name in ("nodes without number", "bridged NVLink", "NVLink without switch"):
        with pytest.raises(TopologyError, match="no PCIe link leads to a NUMA node"):
            render(topology)  # no numbers of the NUMA nodes, or no PCIe at all
        return
    again = nccl_xml.read(render(topology), "again")
    expected = {(p.a, p.b): (p.code, p.gb_per_s) for p in nccl_paths.pairs(topology)}
    read = {(p.a, p.b): (p.code, None if p.gb_per_s_source == "assumed" else p.gb_per_s) for p in again.pairs}
    assert read == expected


def test_what_the_file_looks_like():
    topology = with_bus_ids(nvidia_smi.read(render_tabs(facts_of(2, lambda a, b: "PIX")), "two--gpus.txt"))
    assert render(topology) == (
        "<!--\n"
        "  two-gpus, written by topocomm; for NCCL_TOPO_FILE.\n"
        "  NCCL adds ranks, and what is absent on the way from GPUs to processors.\n"
        "  Bus ids must be those that the machine, or virtual machine, shows.\n"
        "-->\n"
        '<system version="1">\n'
        '  <cpu numaid="-1">\n'
        '    <pci busid="ffff:ff:01.0" class="0x060400">\n'
        '      <pci busid="0000:00:00.0" class="0x030200">\n'
        '        <gpu dev="0"/>\n'
        "      </pci>\n"
        '      <pci busid="0000:01:00.0" class="0x030200">\n'
        '        <gpu dev="1"/>\n'
        "      </pci>\n"
        "    </pci>\n"
        "  </cpu>\n"
        "</system>\n"
    )


def test_amd_files_have_rccls_version():
    assert '<system version="2">' in render(nccl_xml.read(MI300, "m"))
    assert '<system version="1">' in render(nccl_xml.read(h100_half(), "m"))


def test_bus_ids_are_spelled_as_nccl_does():
    text = MI300.replace("0000:", "00000000:").replace('"00000000:11:00.0" class', '"0000:11:00.0" class')
    found = re.findall(r'(?:busid|target)="([^"]*)"', render(nccl_xml.read(text, "m")))
    assert all(re.fullmatch(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]", bus_id) for bus_id in found)


def test_made_up_bus_ids_are_free():
    topology = nccl_xml.read(h100_half(), "m")
    devices = tuple(
        d._replace(bus_id=None if d.id in ("pcie0", "pcie1") else "ffff:ff:01.0" if d.id == "pcie2" else d.bus_id)
        for d in topology.devices
    )
    text = render(replace(topology, devices=devices))
    assert re.findall(r'busid="(ffff\S+)"', text) == ["ffff:ff:02.0", "ffff:ff:03.0", "ffff:ff:01.0"]


def test_rates_that_no_generation_has():
    """A rate that `sm` does not give is kept for topocomm; one that PCIe does not have is left out."""
    topology = nccl_xml.read(h100_half(), "m")
    slow = tuple(link._replace(gb_per_s=36.0) if link.kind == "nvlink" else link for link in topology.links)
    text = render(replace(topology, links=slow))
    assert 'count="18" tclass="0x068000" gb_per_s="2"' in text
    assert {p.gb_per_s for p in nccl_xml.read(text, "m").pairs if p.code == "NV18"} == {36.0}
    odd = tuple(link._replace(gb_per_s=11.1) if link.kind == "pcie" else link for link in topology.links)
    assert not re.search(r'link_speed="[^"]', render(replace(topology, links=odd)))


def test_facts_of_another_kind_do_no_harm():
    topology = nccl_xml.read(h100_half(), "m")
    odd = {"cpus": ["x"], "sm": {"GPU0": [1], "GPU1": "new"}, "gcn": None, "net_speed_mbps": "fast"}
    text = render(replace(topology, facts=odd))
    assert figures(nccl_xml.read(text.replace(' sm="new"', ""), "m"))["GPU0", "GPU1"] == ("NV18", 450.0)
    quoted = {"cpus": [{"numaid": "0", "vendor": 'a"<b'}]}
    assert 'vendor="a&quot;&lt;b"' in render(replace(topology, facts=quoted))


def test_more_elements_than_nccl_reads():
    every = [f"0000:{i:02x}:00.0" for i in range(16)]
    gpus = [gpu(b, f'dev="{i}" sm="80"', *(nvlink(c) for c in every if c != b)) for i, b in enumerate(every)]
    topology = nccl_xml.read(system(cpu(0, *gpus)), "m")
    with pytest.raises(TopologyError, match="274 elements in its XML; NCCL reads at most 256"):
        render(topology)


def test_refusals_say_what_is_missing():
    whole = nccl_xml.read(h100_half(), "m")

    def changed(ident, **fields):
        return replace(whole, devices=tuple(d._replace(**fields) if d.id == ident else d for d in whole.devices))

    def without_links(*kinds):
        return replace(whole, links=tuple(x for x in whole.links if x.kind not in kinds))

    lanes = replace(whole, links=tuple(link._replace(lanes=None) for link in whole.links))
    for topology, words in (
        (replace(catalog("dgx-h100"), source="x"), "no bus id of GPU0, GPU1, .* and 4 more, .* NCCL_TOPO_DUMP_FILE"),
        (changed("GPU1", bus_id=None), "topology 'm': no bus id of GPU1, by which NCCL finds its GPUs"),
        (changed("GPU1", host="host1"), "GPUs on 2 hosts; NCCL_TOPO_FILE describes the GPUs of one host"),
        (changed("mlx5_0", name='a"b'), "the NIC name 'a\"b' holds a character"),
        (changed("numa1", numa="0-1"), "NUMA node numa1 has no single number"),
        (without_links("pcie"), "GPU0, GPU1, GPU2: no PCIe link leads to a NUMA node"),
        (lanes, "the number of links between GPU0 and nvswitch0 is not known"),
        (Topology("cpus", "test", (), ()), "no GPU"),
    ):
        with pytest.raises(TopologyError, match=words):
            render(topology)
