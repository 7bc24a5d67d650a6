"""Damaged and impossible NCCL topology files: an error that names file and line, never another exception."""

import pytest

from tests.topology import damage
from tests.topology.readers.nccl.xml.texts import TAG, cpu, gpu, h100_half, net, nic, nvlink, system
from topocomm.errors import TopologyError
from topocomm.topology.readers.nccl.xml import nccl_xml


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


def test_every_cut_is_an_error():
    whole = h100_half().rstrip()
    for end in range(20, len(whole) - 1, 13):
        if nccl_xml.matches(whole[:end]):
            with pytest.raises(TopologyError, match=r"topo\.xml:"):
                nccl_xml.read(whole[:end], "topo.xml")


def test_mutations_raise_nothing_else():
    pieces = [*'"<>/&\0é', "-1", "0x", "9" * 30, "</pci>", "<gpu/>", '<nvlink target="0000:07:00.0"/>']
    pieces += ['numaid="7"', 'dev="1"', "<nic>", "0000:07:00.0", 'busid=""', 'class="0x0302"', "GPU0", "numa0"]
    change = damage.put(pieces, [0, 0, 1, 2, 5, 40])
    read, _ = damage.attempts(nccl_xml, [h100_half()], [change], seed=5, times=2500)
    assert read


def test_attribute_mutations_raise_nothing_else():
    """The XML stays whole; one value after the other becomes something else."""
    parts = h100_half().split('"')
    values = [
        *("", "x", "-1", "0", "99999999999999999999", "0x7", "0000:07:00.0", "fffffff:ffff:ff"),
        *("GPU0", "\u2028", "mlx5_0"),
    ]
    for index in range(1, len(parts), 2):
        for value in values:
            found = damage.attempt(nccl_xml, '"'.join([*parts[:index], value, *parts[index + 1 :]]))
            assert isinstance(found, str) or found.devices


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
