"""GPUs that are hidden, and pairs that may not reach each other's memory."""

from dataclasses import replace

import pytest

from tests.doctor.machines import found, with_facts, without_devices
from topocomm import catalog
from topocomm.doctor.checks.gpu_checks import check_hidden_gpus, check_p2p, check_pci_gpus
from topocomm.topology.model import Device, Topology


def test_a_hole_in_the_numbers_is_a_hidden_gpu():
    whole = catalog("dgx-h100")
    found(check_hidden_gpus(whole), "hidden GPUs", "ok", "GPU0-7")
    findings = check_hidden_gpus(without_devices(whole, ["GPU2", "GPU5"]))
    found(findings, "hidden GPUs", "warn", "GPU2,5 not seen, though GPU7 is", "CUDA_VISIBLE_DEVICES", "nvidia-smi -L")


def test_the_host_is_named_where_there_are_several():
    two = without_devices(catalog("dgx-h100", hosts=2), ["h1/GPU3"])
    fine, hidden = check_hidden_gpus(two)
    assert (fine.level, fine.text) == ("ok", "h0: GPU0-7: no number is missing")
    assert hidden.text.startswith("h1: GPU3 not seen")


def test_many_holes_are_counted_and_some_named():
    few = Topology("few", "test", (Device("GPU0", "gpu"), Device("GPU999999", "gpu")), ())
    found(check_hidden_gpus(few), "hidden GPUs", "warn", "999998 GPUs GPU1-16 not seen")


def test_gpus_of_other_names_have_no_numbers():
    assert check_hidden_gpus(Topology("odd", "test", (Device("left", "gpu"), Device("GPU7", "gpu")), ())) == []
    assert check_hidden_gpus(catalog("cpu-2-socket")) == []


def test_ranks_that_are_not_device_numbers():
    gpus = tuple(Device(f"GPU{i}", "gpu") for i in (0, 1, 3, 4))
    machine = Topology("vm", "NCCL topology XML", gpus, ())
    told = with_facts({"gpu_rank": {"GPU0": 0, "GPU1": 1, "GPU3": 2, "GPU4": 3}}, machine)
    hole, ranks = check_hidden_gpus(told)
    found([hole], "hidden GPUs", "warn", "GPU2 not seen")
    found([ranks], "hidden GPUs", "warn", "GPU3 is rank 2, GPU4 is rank 3", "PCI_BUS_ID")
    second_node = with_facts({"gpu_rank": {f"GPU{i}": 8 + i for i in range(8)}})
    found(check_hidden_gpus(second_node), "hidden GPUs", "ok")


def pci_device(root, bus_id, kind, vendor):
    folder = root / "bus/pci/devices" / bus_id
    folder.mkdir(parents=True)
    (folder / "class").write_text(f"{kind}\n")
    (folder / "vendor").write_text(f"{vendor}\n")


def test_gpus_on_the_bus_that_the_driver_does_not_show(tmp_path):
    for i in range(9):
        pci_device(tmp_path, f"0000:{i:02x}:00.0", "0x030200", "0x10de")
    found(check_pci_gpus(catalog("dgx-h100"), tmp_path), "hidden GPUs", "warn", "9 NVIDIA devices", "8 GPUs", "xid")
    assert check_pci_gpus(catalog("cpu-2-socket"), tmp_path) == []
    assert check_pci_gpus(catalog("dgx-h100"), tmp_path / "none") == []


@pytest.mark.parametrize(
    ("word", "parts"),
    [
        ("CNS", ("CNS, the chipset", "ACS", "IOMMU")),
        ("GNS", ("GNS, the GPU or its driver", "GeForce")),
        ("TNS", ("TNS, the way between them", "one PCIe switch")),
        ("DR", ("DR, switched off", "modprobe")),
        ("NS", ("NS, not supported",)),
        ("U", ("U, the driver does not know",)),
        ("odd", ("odd, not OK",)),
        (False, ("without P2P: not used",)),
    ],
)
def test_pairs_without_p2p(word, parts):
    told = with_facts({"p2p": {"GPU0-GPU1": "OK", "GPU0-GPU2": word}})
    found(check_p2p(told), "P2P", "warn", "1 pair", "GPU0-GPU2", *parts)


def test_p2p_says_what_was_asked_for():
    pairs = {"GPU0-GPU1": "OK", "GPU0-GPU2": "CNS", "GPU1-GPU2": "CNS"}
    found(check_p2p(with_facts({"p2p": pairs, "capability": "w"})), "P2P", "warn", "2 pairs without P2P writes: CNS,")
    found(check_p2p(with_facts({"p2p": pairs, "capability": "n"})), "P2P", "info", "NVLink")
    found(check_p2p(with_facts({"p2p": {"GPU0-GPU1": "OK"}, "capability": "r"})), "P2P", "ok", "all 1 pair OK (reads)")
    assert check_p2p(catalog("dgx-h100")) == []
    assert check_p2p(with_facts({"p2p": ["GPU0"]})) == []


def test_facts_of_a_cluster_are_by_host():
    two = replace(catalog("dgx-h100", hosts=2), facts={"h1": {"p2p": {"GPU0-GPU1": "TNS"}}})
    found(check_p2p(two), "P2P", "warn", "h1: 1 pair without P2P: TNS")
