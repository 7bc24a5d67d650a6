"""NVLinks and xGMI links that are down, and channels that leave links idle."""

import pytest

from tests.doctor.machines import changed_links, found, with_facts, without_devices
from topocomm import catalog
from topocomm.doctor.checks.fabric_checks import check_channels, check_fabric
from topocomm.topology.model import Device, Topology


def lanes(count):
    return lambda link: link._replace(lanes=count)


def test_fewer_lanes_into_the_switch():
    whole = catalog("dgx-h100")
    found(check_fabric(whole), "NVLinks", "ok", "18 on each of 8 GPUs")
    findings = check_fabric(changed_links(whole, lanes(16), ends=("GPU3", "nvswitch0")))
    found(findings, "NVLinks", "warn", "GPU3 has 16 of the 18", "nvidia-smi nvlink -s", "fabricmanager")


def test_no_link_into_the_switch():
    findings = check_fabric(changed_links(catalog("dgx-h100"), lambda _: None, ends=("GPU3", "nvswitch0")))
    found(findings, "NVLinks", "warn", "no link of GPU3 into the switch that the other 7 GPUs have")


def test_a_direct_link_down():
    cube = catalog("dgx-1-v100")
    found(check_fabric(cube), "NVLinks", "ok", "6 on each of 8")
    findings = check_fabric(changed_links(cube, lanes(1), ends=("GPU0", "GPU3")))
    found(findings, "NVLinks", "warn", "GPU0 has 5, GPU3 has 5 of the 6")
    mesh = catalog("mi300x-8")
    findings = check_fabric(changed_links(mesh, lambda _: None, ends=("GPU0", "GPU3")))
    found(findings, "xGMI links", "warn", "GPU0 has 6, GPU3 has 6 of the 7", "amd-smi xgmi")


def test_most_gpus_with_fewer_lanes_into_the_switch():
    low = catalog("dgx-h100")
    for i in range(6):
        low = changed_links(low, lanes(16), ends=(f"GPU{i}", "nvswitch0"))
    found(check_fabric(low), "NVLinks", "warn", "GPU0 has 16", "and 2 more of the 18")


def test_peers_count_where_lanes_even_out():
    lost = changed_links(catalog("mi300x-8"), lambda _: None, ends=("GPU0", "GPU2"))
    for ends in (("GPU0", "GPU1"), ("GPU2", "GPU3")):
        lost = changed_links(lost, lanes(2), ends=ends)
    findings = check_fabric(lost)
    found(findings, "xGMI links", "warn", "GPU0 is joined to 6, GPU2 is joined to 6 GPUs, the others to 7")


def test_parts_of_machines_that_are_unequal_by_design_are_fine():
    assert all(f.level == "ok" for f in check_fabric(catalog("mi250x")))
    half_a_cube = without_devices(catalog("dgx-1-v100"), [f"GPU{i}" for i in range(4, 8)])
    assert all(f.level == "ok" for f in check_fabric(half_a_cube))
    assert check_fabric(catalog("rtx4090-pcie-8")) == []


def three(facts):
    gpus = tuple(Device(f"GPU{i}", "gpu") for i in range(3))
    return Topology("three", "nvidia-smi nvlink -s", gpus, (), facts=facts)


def test_inactive_gpus_of_nvlink_status():
    active = {"GPU0": 4, "GPU1": 4, "GPU2": 0}
    told = three({"inactive_gpus": ["GPU2"], "active_links_per_gpu": active, "links_per_gpu": active})
    found(
        check_fabric(told),
        "NVLinks",
        "warn",
        "all links of GPU2 are inactive; 4 are active on GPU0-1",
        "harmless where no bridge",
    )
    none = three({"inactive_gpus": ["GPU0", "GPU1", "GPU2"]})
    found(check_fabric(none), "NVLinks", "info", "all links of GPU0-2 are inactive")


def test_links_down_of_nvlink_status():
    low = three({"active_links_per_gpu": {"GPU0": 12, "GPU1": 11, "GPU2": 12}})
    found(check_fabric(low), "NVLinks", "warn", "GPU1 has 11 of 12", "nvlink -e")
    all_low = three(
        {"active_links_per_gpu": dict.fromkeys(("GPU0", "GPU1"), 11), "links_per_gpu": {"GPU0": 12, "GPU1": 12}}
    )
    found(check_fabric(all_low), "NVLinks", "warn", "GPU0 has 11 of 12, GPU1 has 11 of 12")
    found(check_fabric(three({"active_links_per_gpu": {"GPU0": 12, "GPU1": 12}})), "NVLinks", "ok", "12 active")


@pytest.mark.parametrize("odd", ["4", 4, [3], {"GPU0": "four"}, {"GPU0": True}, None])
def test_facts_of_another_shape_are_passed_over(odd):
    assert check_fabric(three(dict.fromkeys(("inactive_gpus", "active_links_per_gpu", "links_per_gpu"), odd))) == []
    assert check_channels(with_facts(dict.fromkeys(("graphs", "rings"), odd))) == []


def test_channels_against_links():
    def graph(channels, speed):
        return with_facts({"graphs": [{"id": 1}, {"id": 0, "nchannels": channels, "speedintra": speed}]})

    found(check_channels(graph(12, 30)), "NCCL rings", "ok", "12 channels of 30 GB/s for 18 links of 450")
    found(check_channels(graph(2, 20)), "NCCL rings", "info", "links may be idle", "NCCL_MIN_NCHANNELS", "GRAPH")
    found(check_channels(with_facts({"nchannels": 2})), "NCCL rings", "info", "2 channels for 18 links")
    found(check_channels(with_facts({"rings": {str(i): [0, 1] for i in range(24)}})), "NCCL rings", "ok", "24 channels")
    totals = three({"nchannels": 2, "nvlink_total_per_gpu": {"GPU0": 4}})
    found(check_channels(totals), "NCCL rings", "info", "2 channels for 4 links")
    assert check_channels(three({"nchannels": 2})) == []
    assert check_channels(catalog("dgx-h100")) == []
