"""Files that topocomm writes, given to a model of the code in NCCL that reads them."""

import re

import pytest

from tests.topology.dumps import each_of
from tests.topology.export import consumer
from tests.topology.export.test_nccl_xml_writer import MACHINES, with_bus_ids
from tests.topology.inference.test_nccl_paths import MATRICES
from tests.topology.matrices import render_tabs
from tests.topology.readers.hwloc.machines import Xml
from tests.topology.readers.nccl.log.logs import by
from tests.topology.readers.nccl.xml.texts import cpu, gpu, system
from tests.topology.readers.pci.trees import A100, CX6, draw
from topocomm.errors import TopologyError
from topocomm.topology.export.nccl_xml_writer import render
from topocomm.topology.readers.hwloc import hwloc_xml, lstopo
from topocomm.topology.readers.nccl.log import nccl_log
from topocomm.topology.readers.nccl.xml import nccl_xml
from topocomm.topology.readers.nccl.xml.nccl_xml_values import bus_key
from topocomm.topology.readers.nvidia import nvidia_smi
from topocomm.topology.readers.pci import lspci
from topocomm.topology.recognise import load

LSTOPO = """\
Machine (64GB total)
  Package L#0
    NUMANode L#0 (P#0 32GB)
    Core L#0 + PU L#0 (P#0)
    HostBridge
      PCIBridge
        PCI 17:00.0 (3D)
          CoProc(CUDA) "cuda0"
  Package L#1
    NUMANode L#1 (P#1 32GB)
    Core L#1 + PU L#1 (P#1)
    HostBridge
      PCIBridge
        PCIBridge
          PCIBridge
            PCI e7:00.0 (InfiniBand)
              OpenFabrics "mlx5_0"
          PCIBridge
            PCI e8:00.0 (InfiniBand)
              OpenFabrics "mlx5_1"
"""
ROME = {"CPUVendor": "AuthenticAMD", "CPUFamilyNumber": "25", "CPUModelNumber": "1"}
LOG = """\
=== System : maxBw 24.0 totalBw 24.0 ===
CPU/0-0 (1/1/3)
+ PCI[24.0] - PCI/0-16000 (1000c0101000a096)
              + PCI[12.0] - GPU/0-17000 (0)
              + PCI[24.0] - NIC/0-18000
                            + NET[25.0] - NET/0-0 (0/8e2a/1/25.000000)
+ PCI[0.8] - GPU/0-19000 (1)
==========================================
"""


def hwloc_machine(infos=ROME):
    """Two sockets: GPUs on the first, one of them on a switch with a NIC; two NICs on a switch of the second."""
    xml = Xml()
    xml.begin("Machine", cpuset="0x3")
    for socket in range(2):
        xml.begin("Package", cpuset=f"0x{1 << socket}", os_index=socket)
        for item in infos.items():
            xml.info(*item)
        xml.single("NUMANode", cpuset=f"0x{1 << socket}", os_index=socket)
        xml.host_bridge()
        xml.bridge(f"0000:{socket}1:00.0")
        if socket == 0:
            xml.gpu("0000:02:00.0", "nvml1")
        else:
            xml.nic("0000:12:00.0", fabric="mlx5_1")
        xml.nic("0000:03:00.0" if socket == 0 else "0000:13:00.0", fabric="mlx5_0" if socket == 0 else "mlx5_2")
        xml.end()
        if socket == 0:
            xml.gpu("0000:04:00.0", "nvml0")
        xml.end(2)
    xml.end()
    return hwloc_xml.read(xml.text(), "machine.xml")


def log(text=LOG, more=""):
    return nccl_log.read(by(0, text + more), "job.log")


WRITTEN = {
    **{name: (lambda text=text: nccl_xml.read(text, "m.xml")) for name, text in MACHINES.items()},
    **{
        f"matrix, {name}": (lambda name=name: with_bus_ids(nvidia_smi.read(render_tabs(MATRICES[name]), "m.txt")))
        for name in ("every level", "switched NVLink")
    },
    "hwloc": hwloc_machine,
    "hwloc without models": lambda: hwloc_machine({}),
    "lstopo": lambda: lstopo.read(LSTOPO, "m.txt"),
    "log": log,
}


def as_nccl(text):
    """RCCL's file for NCCL's model: it reads the same elements."""
    return text.replace("<xgmi", "<nvlink").replace('version="2"', 'version="1"')


def assert_taken(topology):
    """A job starts with the file, and sees every device once and PCIe paths as the topology has them."""
    text = as_nccl(render(topology))
    seen = consumer.load(text)
    assert consumer.load(text, sysfs=False).twice() == seen.twice() == set()
    devices = topology.by_id
    for pair in topology.pairs:
        a, b = (bus_key(devices[end].bus_id or "") for end in (pair.a, pair.b))
        if pair.code in ("PIX", "PXB", "PHB", "NODE", "SYS") and f'busid="{b}"' in text and devices[pair.b].name:
            assert seen.code(a, b) == ("PHB" if pair.code == "NODE" else pair.code), (pair.a, pair.b)
    return seen


@pytest.mark.parametrize("make", WRITTEN.values(), ids=WRITTEN)
def test_nccl_takes_the_file(make):
    assert_taken(make())


@each_of("hwloc-xml", "lstopo-text", "lspci-tv", "nccl-log", "nccl-topo-xml")
def test_nccl_takes_the_files_of_real_machines(path):
    try:
        topology = load(path)
        text = as_nccl(render(topology))
    except TopologyError:
        return  # a damaged dump, or one that lacks what test_writer names
    if "<gpu" in text:
        assert consumer.load(text).twice() == consumer.load(text, sysfs=False).twice() == set()


@pytest.mark.parametrize(
    ("element", "key"),
    [("pci", "link_speed"), ("pci", "link_width"), ("pci", "class"), ("cpu", "arch"), ("cpu", "vendor")],
)
def test_the_model_refuses_what_nccl_refuses(element, key):
    """`xmlGetAttrStr` warns so, and the job does not start."""
    text = render(hwloc_machine())
    with pytest.raises(consumer.Refused, match=f"Attribute {key} of node {element} not found"):
        consumer.load(re.sub(rf'(<{element} [^>]*?) {key}="[^"]*"', r"\1", text))


@pytest.mark.parametrize("key", ["subsystem_device", "device", "affinity"])
def test_the_model_sees_devices_twice_where_ranks_fill_in_attributes_each_for_itself(key):
    text = render(nccl_xml.read(MACHINES["h100"], "m.xml"))
    assert consumer.load(re.sub(rf' {key}="[^"]*"', "", text)).twice()


def test_a_host_bridge_is_no_switch():
    """One alone is drawn without a trunk; its devices meet at the processor, where NCCL allows no P2P."""
    gpus = {f"0{i}.1": (f"0{i}", {"00.0": A100}) for i in (1, 2)}
    one = lspci.read(draw({"0000:00": {"00.0": "Intel Corporation Device 09a2", **gpus}}), "m.txt")
    text = render(one)
    assert consumer.load(text).code("0000:01:00.0", "0000:02:00.0") == "PHB"
    assert "0x060400" not in text
    below = {"00.0": ("02-04", {"00.0": ("03", {"00.0": A100}), "01.0": ("04", {"00.0": A100})})}
    switch = {"01.0": ("01-04", below), "02.0": ("05", {"00.0": A100}), "03.0": ("06", {"00.0": CX6})}
    text = render(lspci.read(draw({"0000:00": switch}), "m.txt"))
    assert 'busid="0000:06:00.0" class="0x020000"' in text
    assert "<net" not in text  # NCCL finds ports by the system's name, and this source has the model's
    seen = consumer.load(text)
    assert seen.code("0000:03:00.0", "0000:04:00.0") == "PIX"
    assert seen.code("0000:03:00.0", "0000:05:00.0") == "PHB"


def test_speeds_of_a_log_come_back_as_nccl_reckons_them():
    text = render(log())
    seen = consumer.load(text)
    assert [seen.gb_per_s(f"0000:1{i}:00.0") for i in (6, 7, 9)] == [24.0, 12.0, 0.75]
    assert 'link_width="12"' not in text


def test_speeds_of_hwloc_are_those_of_generations():
    """hwloc's GB/s are net of the coding: 15.75 for Gen3 x16, for which NCCL reckons 12."""
    seen = consumer.load(render(hwloc_machine()))
    assert {seen.gb_per_s(bus_id) for bus_id in ("0000:02:00.0", "0000:03:00.0", "0000:01:00.0")} == {12.0}


def test_what_a_log_says_of_hardware_is_written():
    text = render(log())
    switch = 'busid="0000:16:00.0" class="0x060400" vendor="0x1000" device="0xc010" subsystem_vendor="0x1000"'
    assert f'{switch} subsystem_device="0xa096"' in text
    assert 'arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143"' in text
    assert re.findall("<gpu.*/>", text) == ['<gpu rank="0"/>', '<gpu rank="1"/>']
    init = "".join(
        by(
            rank,
            f"comm 0x1 rank {rank} nranks 2 cudaDev {rank} nvmlDev {5 - rank} busId 1{7 + 2 * rank}000 - Init START\n",
        )
        for rank in range(2)
    )
    known = nccl_log.read(init + by(0, LOG), "job.log")
    assert re.findall("<gpu.*/>", render(known)) == ['<gpu dev="5"/>', '<gpu dev="4"/>']


@pytest.mark.parametrize(
    "line",
    [
        "RCCL version 2.18.6+hip6.1",
        "NCCL version 2.18.6+hip6.1",
        "Ring 00 : 1 -> 0 -> 1 comm 0x55 nRanks 02 busId 17000",
    ],
)
def test_logs_of_rccl_make_files_of_its_version(line):
    assert '<system version="2">' in render(log(more=f"{line}\n"))
    assert '<system version="1">' in render(log())


def test_ids_of_switches_are_kept():
    """`ncclTopoFlattenBcmSwitches` makes one switch of two levels of PEX switches, which it knows by these ids."""
    ids = 'vendor="0x1000" device="0xc030" subsystem_vendor="0x1000" subsystem_device="0x0001"'
    bridges = MACHINES["h100"].replace('class="0x060400"', f'class="0x060400" {ids}')
    assert render(nccl_xml.read(bridges, "m.xml")).count(ids) == 3
    known = render(hwloc_machine())
    assert 'vendor="0x8086" device="0x2030" subsystem_vendor="0x0000" subsystem_device="0x0000"' in known


def test_models_of_hwloc_are_in_nccls_words():
    assert 'arch="x86_64" vendor="AuthenticAMD" familyid="175" modelid="1"' in render(hwloc_machine())


def test_only_a_drivers_number_is_a_dev():
    devs = dict(re.findall(r'busid="([^"]*)"[^>]*>\s*<gpu dev="(\d)"', render(hwloc_machine())))
    assert devs == {"0000:02:00.0": "1", "0000:04:00.0": "0"}
    assert re.findall("<gpu.*/>", render(lstopo.read(LSTOPO, "m.txt"))) == ["<gpu/>"]
    template = re.sub(r"<gpu [^>]*>.*?</gpu>\n", "", MACHINES["h100"])
    assert "dev=" not in render(nccl_xml.read(template, "m.xml"))


def test_the_head_says_what_is_empty():
    head = render(lstopo.read(LSTOPO, "m.txt")).partition("-->")[0]
    assert "Not known, so empty:" in head
    assert "- models of processors, between which NCCL then sees no limit" in head
    assert "- speed and width of links, for which NCCL takes Gen3 and 16 lanes" in head


def test_links_of_a_gpu_to_itself_are_kept():
    """Clouds write them for `ncclTopoGetXmlFromGpu`, which looks for NVLinks only where the file has none."""
    loop = '<nvlink target="0000:07:00.0" count="12" tclass="0x030200"/>'
    text = system(cpu(0, gpu("0000:07:00.0", 'dev="0" sm="80"', loop)))
    assert loop in render(nccl_xml.read(text, "m.xml"))


def test_a_card_of_a_log_with_two_ports_is_one_card():
    ports = "".join(f"                            + NET[12.5] - NET/0-{i} (0/8e2a/{i}/12.500000)\n" for i in (0, 1))
    text = re.sub(r" *\+ NET.*\n", ports, LOG)
    using = by(0, "NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.1<0>\n")
    written = render(nccl_log.read(using + by(0, text), "job.log"))
    assert written.count('busid="0000:18:00.0"') == 1 and written.count("ffff:ff") == 0
    assert re.findall("<net .*/>", written) == [f'<net name="mlx5_{i}" speed="100000"/>' for i in (0, 1)]
    assert consumer.load(written).code("0000:17:00.0", "0000:18:00.0") == "PIX"
