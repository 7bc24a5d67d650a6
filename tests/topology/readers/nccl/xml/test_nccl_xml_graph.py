"""Devices and PCIe links of NCCL topology files."""

import pytest

from tests.topology.readers.nccl.xml.reading import codes, links, read
from tests.topology.readers.nccl.xml.texts import AMD, GEN5, TAG, bridge, cpu, gpu, h100_half, nic, system
from topocomm.topology.model import Link


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


@pytest.mark.parametrize(
    ("speed", "gb_per_s", "source", "warnings"),
    [("16 GT/s", 32.0, "read", 0), ("Unknown speed", 16.0, "assumed", 1), (None, None, None, 0)],
)
def test_rates_say_where_they_are_from(speed, gb_per_s, source, warnings):
    given = 'link_width="16"' + ("" if speed is None else f' link_speed="{speed}"')
    topology = read(system(cpu(0, gpu("0000:01:00.0", TAG, link=given))))
    link = links(topology)["GPU0", "numa0"]
    assert (link.gb_per_s, link.gb_per_s_source, len(topology.warnings)) == (gb_per_s, source, warnings)
