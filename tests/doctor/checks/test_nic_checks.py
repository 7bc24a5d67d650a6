"""NICs that are shared, crossed, or on the wrong NUMA node."""

from dataclasses import replace

from tests.doctor.machines import found, plain_host, recoded, without_devices
from topocomm import catalog
from topocomm.doctor.checks.host_views import hosts_of
from topocomm.doctor.checks.nic_checks import check_nic_places, check_pairs, nearest, paired


def test_pairs_of_a_healthy_machine():
    found(check_pairs(catalog("dgx-h100")), "GPU-NIC pairs", "ok", "8 GPUs near 8 NICs")
    found(check_pairs(catalog("dgx-1-v100")), "GPU-NIC pairs", "ok", "8 GPUs near 4 NICs")
    assert check_pairs(without_devices(catalog("dgx-h100"), [f"NIC{i}" for i in range(8)])) == []


def test_two_gpus_on_one_nic_while_another_idles():
    shared = recoded(catalog("dgx-h100"), {("GPU1", "NIC0"): "PIX", ("GPU1", "NIC1"): "NODE"})
    findings = check_pairs(shared)
    found(findings, "GPU-NIC pairs", "warn", "NIC0 is the nearest of GPU0-1", "NIC1 is the nearest of no GPU", "BIOS")


def test_the_host_with_the_shared_nic_is_named():
    two = recoded(catalog("dgx-h100", hosts=2), {("h1/GPU1", "h1/NIC0"): "PIX", ("h1/GPU1", "h1/NIC1"): "NODE"})
    assert [(f.level, f.text.partition(":")[0]) for f in check_pairs(two)] == [("ok", "h0"), ("warn", "h1")]


def test_an_idle_nic_beside_fewer_nics_than_gpus_may_be_for_storage():
    codes = {(f"GPU{i}", "NIC0"): "PIX" for i in range(4)}
    found(check_pairs(plain_host(4, 2, codes)), "GPU-NIC pairs", "info", "NIC0 is the nearest of GPU0-3")


def test_nics_of_another_kind_do_not_count_as_idle():
    codes = {(f"GPU{i}", "NIC0"): "PIX" for i in range(2)}
    host = plain_host(2, 2, codes, names={"NIC0": "mlx5_0", "NIC1": "eno1"})
    found(check_pairs(host), "GPU-NIC pairs", "ok", "2 GPUs near 1 NIC")


def crossed_host():
    codes = {(f"GPU{i}", f"NIC{3 - i}"): "PIX" for i in range(4)}
    return plain_host(4, 4, codes, names={f"NIC{i}": f"mlx5_{i}" for i in range(4)})


def test_crossed_numbers():
    findings = check_pairs(crossed_host())
    found(
        findings,
        "GPU-NIC pairs",
        "warn",
        "GPU0's nearest is mlx5_3, not mlx5_0",
        "pair by distance: GPU0 mlx5_3, GPU1 mlx5_2",
    )


def test_numbers_within_one_switch_are_not_crossed():
    codes = {(f"GPU{i}", f"NIC{j}"): "PXB" for i in range(4) for j in range(4) if i // 2 == j // 2}
    found(check_pairs(plain_host(4, 4, codes)), "GPU-NIC pairs", "ok", "4 GPUs near 4 NICs")


def test_gpus_with_fewer_choices_choose_first():
    codes = {("GPU0", "NIC0"): "PXB", ("GPU0", "NIC1"): "PXB", ("GPU1", "NIC0"): "PIX", ("GPU1", "NIC1"): "PXB"}
    (host,) = hosts_of(plain_host(2, 2, codes))
    assert paired(host, nearest(host)) == {"GPU0": "NIC1", "GPU1": "NIC0"}


def numa(pattern):
    return {f"GPU{i}": node for i, node in enumerate(pattern)}


def test_nic_places_of_a_healthy_machine():
    found(check_nic_places(catalog("dgx-h100")), "NIC NUMA nodes", "ok", "8 NICs on NUMA nodes 0, 1")
    one_card = plain_host(4, 1, {}, numa=numa((0, 0, 1, 1)), nic_numa={"NIC0": 0})
    found(check_nic_places(one_card), "NIC NUMA nodes", "ok")
    assert check_nic_places(plain_host(2, 2, {}, nic_numa={"NIC0": 0})) == []


def test_no_nic_on_the_node_of_some_gpus():
    codes = {(f"GPU{i}", f"NIC{j}"): "SYS" for i in (2, 3) for j in (0, 1)}
    one_side = plain_host(4, 2, codes, numa=numa((0, 0, 1, 1)), nic_numa={"NIC0": 0, "NIC1": 0})
    findings = check_nic_places(one_side)
    found(findings, "NIC NUMA nodes", "warn", "GPU2-3 (NUMA node 1) has no NIC", "all 2 are on 0", "other socket")
    ports = tuple(
        d._replace(bus_id=f"0000:0c:00.{d.id[-1]}") if d.kind == "nic" else d for d in one_side.devices
    )  # two ports of one card
    found(check_nic_places(replace(one_side, devices=ports)), "NIC NUMA nodes", "ok")


def test_a_nic_whose_number_contradicts_its_neighbours():
    codes = {("GPU0", "NIC0"): "PIX", ("GPU2", "NIC1"): "PIX"}
    wrong = plain_host(4, 2, codes, numa=numa((0, 0, 1, 1)), nic_numa={"NIC0": 1, "NIC1": 1})
    found(check_nic_places(wrong), "NIC NUMA nodes", "warn", "NIC0 is on node 1, and GPU0 beside it on 0", "numa_node")
