"""PCIe links that are slower than they should be, and trees that cannot be true."""

from dataclasses import replace

import pytest

from tests.doctor.machines import found, pcie_host, plain_host, recoded, with_facts
from topocomm import catalog
from topocomm.doctor.checks.pcie_checks import check_flat_tree, check_pcie, check_slots
from topocomm.topology.links import both_ways
from topocomm.topology.model import Device, Topology


def test_half_width_link_of_a_gpu():
    found(check_pcie(pcie_host({"GPU0": 24.0, "GPU1": 24.0})), "PCIe links", "ok", "2 looked at")
    findings = check_pcie(pcie_host({"GPU0": 24.0, "GPU1": 12.0, "GPU2": 24.0}))
    found(findings, "PCIe links", "warn", "GPU1 has 12 GB/s, its siblings 24", "half the width", "LnkSta", "x16 slot")


def test_a_slow_link_further_up():
    machine = pcie_host({"GPU0": 24.0})
    devices = (*machine.devices, Device("GPU1", "gpu"), Device("pcie1", "switch"), Device("numa0", "numa"))
    links = [*machine.links, *both_ways("GPU1", "pcie1", "pcie", gb_per_s=24.0)]
    links += [*both_ways("pcie0", "numa0", "pcie", gb_per_s=24.0), *both_ways("pcie1", "numa0", "pcie", gb_per_s=6.0)]
    found(check_pcie(replace(machine, devices=devices, links=tuple(links))), "PCIe links", "warn", "GPU1 has 6 GB/s")


def test_half_width_link_of_a_nic_among_its_like():
    slow = pcie_host({"GPU0": 48.0, "mlx5_0": 48.0, "mlx5_1": 24.0, "eth0": 1.0}, {"mlx5_0": 25.0, "mlx5_1": 25.0})
    found(check_pcie(slow), "PCIe links", "warn", "mlx5_1 has 24 GB/s, its siblings 48")
    other = pcie_host({"GPU0": 48.0, "mlx5_0": 48.0, "mlx5_1": 12.0}, {"mlx5_0": 50.0, "mlx5_1": 12.5})
    found(check_pcie(other), "PCIe links", "ok")


def test_slot_slower_than_the_port():
    slow = pcie_host({"GPU0": 12.0, "mlx5_0": 12.0}, {"mlx5_0": 50.0})
    found(check_pcie(slow), "PCIe links", "warn", "mlx5_0 has 12 GB/s for a port of 50", "more lanes")


def test_what_a_source_says_of_slots():
    sides = {"GPU0": "16 GT/s x16", "GPU1": "16 GT/s x8"}
    found(check_pcie(with_facts({"pcie": sides})), "PCIe links", "warn", "GPU1 has x8, its siblings x16")
    words = {
        "link_speed": "8.0 GT/s PCIe",
        "link_width": "16",
        "max_link_speed": "16.0 GT/s PCIe",
        "max_link_width": 16,
    }
    idle = {"GPU0": words}
    found(check_pcie(with_facts({"pcie": idle})), "PCIe links", "info", "GPU0 runs 8 of 16 GT/s", "idle", "computes")
    nic = {"NIC0": words}
    found(check_pcie(with_facts({"pcie": nic})), "PCIe links", "warn", "NIC0 runs 8 of 16 GT/s: trained down")
    narrow = {"GPU0": {**words, "link_speed": "16 GT/s", "link_width": "x4"}}
    found(check_pcie(with_facts({"pcie": narrow})), "PCIe links", "warn", "GPU0 runs x4 of x16")


def test_what_discovery_says_of_slots():
    like = {"speed_gts": 16.0, "width": 16, "max_speed_gts": 16.0, "max_width": 16}
    topology = with_facts({"pcie": {"0000:01:00.0": like, "0000:41:00.0": {**like, "width": 8}}})
    gpus = [device for device in topology.devices if device.kind == "gpu"][:2]
    ids = dict(zip((gpu.id for gpu in gpus), ("0000:01:00.0", "0000:41:00.0"), strict=True))
    devices = tuple(device._replace(bus_id=ids.get(device.id)) for device in topology.devices)
    text = f"{gpus[1].id} runs x8 of x16"
    found(check_pcie(replace(topology, devices=devices)), "PCIe links", "warn", text)


@pytest.mark.parametrize("odd", ["8 GT/s x16", 3, {"GPU0": 3}, {"GPU0": {"link_speed": "", "link_width": 0}}])
def test_facts_of_another_shape_are_passed_over(odd):
    assert check_pcie(with_facts({"pcie": odd})) == []


def slot(root, path, **words):
    folder = root / "devices" / path
    folder.mkdir(parents=True, exist_ok=True)
    for name, word in words.items():
        (folder / name).write_text(f"{word}\n")
    (root / "bus/pci/devices").mkdir(parents=True, exist_ok=True)
    link = root / "bus/pci/devices" / folder.name
    if not link.exists():
        link.symlink_to(folder)


def test_slots_of_this_machine(tmp_path):
    port, card = "pci0000:00/0000:00:01.0", "pci0000:00/0000:00:01.0/0000:0c:00.0"
    slot(tmp_path, port, max_link_speed="16.0 GT/s PCIe", max_link_width="16")
    trained = {"max_link_speed": "32.0 GT/s PCIe", "max_link_width": "16", "current_link_speed": "16.0 GT/s PCIe"}
    here = Topology("here", "sysfs", (Device("mlx5_0", "nic", bus_id="00000000:0C:00.0"),), ())
    slot(tmp_path, card, **trained, current_link_width="16")
    assert check_slots(here, tmp_path) == []  # the card is of a later generation than its slot
    slot(tmp_path, card, current_link_width="8")
    found(check_slots(here, tmp_path), "PCIe links", "warn", "mlx5_0 runs x8 of x16", "reseat")
    slot(tmp_path, card, current_link_width="16", current_link_speed="2.5 GT/s PCIe")
    found(check_slots(here, tmp_path), "PCIe links", "warn", "mlx5_0 runs 2.5 of 16 GT/s")
    slot(tmp_path, card, **{"class": "0x030200", "vendor": "0x10de"})
    found(check_slots(Topology("x", "y", (), ()), tmp_path), "PCIe links", "info", "GPU at 0000:0c:00.0 runs 2.5 of 16")


def test_slots_that_say_nothing(tmp_path):
    unknown = {"max_link_speed": "Unknown", "max_link_width": "0", "current_link_width": "0"}
    slot(tmp_path, "pci0000:00/0000:0c:00.0", **unknown)
    devices = (Device("a", "nic", bus_id="0000:0c:00.0"), Device("b", "nic", bus_id="../../etc"), Device("c", "nic"))
    assert check_slots(Topology("here", "sysfs", devices, ()), tmp_path) == []


def test_flat_tree_of_a_virtual_machine():
    def flat(code, numa=None):
        gpus = [f"GPU{i}" for i in range(4)]
        codes = {(a, b): code for a in gpus for b in (*gpus, "NIC0", "NIC1")}
        return plain_host(4, 2, codes, numa=numa)

    found(check_flat_tree(flat("PHB")), "PCIe tree", "info", "every PCIe pair is PHB", "NCCL_TOPO_FILE", "ACSCtl")
    found(check_flat_tree(flat("SYS")), "PCIe tree", "info", "every PCIe pair is SYS")
    assert check_flat_tree(flat("SYS", {f"GPU{i}": i for i in range(4)})) == []  # a node each
    assert check_flat_tree(flat("PIX")) == []
    assert check_flat_tree(recoded(flat("PHB"), {("GPU0", "GPU1"): "PIX"})) == []
    assert check_flat_tree(catalog("rtx4090-pcie-8")) == []
