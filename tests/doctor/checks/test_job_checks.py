"""Hosts of one job that differ, and rank orders that break locality."""

from dataclasses import replace

from tests.doctor.machines import changed_links, found, recoded, without_devices
from topocomm import catalog
from topocomm.doctor.checks.job_checks import Started, check_hosts, check_local_ranks, check_rank_order, order_of_hosts
from topocomm.topology.inference.pci_tree import natural
from topocomm.topology.merge.cluster import merge_hosts
from topocomm.topology.model import RankPlace


def test_hosts_alike():
    found(check_hosts(catalog("dgx-h100", hosts=4)), "hosts alike", "ok", "4 hosts")
    assert check_hosts(catalog("dgx-h100")) == []


def of(findings, word):
    return [finding for finding in findings if word in finding.text]


def test_a_host_with_fewer_devices():
    fewer = without_devices(catalog("dgx-h100", hosts=4), ["h2/GPU3", "h1/NIC7"])
    findings = check_hosts(fewer)
    found(of(findings, "of GPUs"), "hosts alike", "warn", "8 on h0-1,3; 7 on h2", "nvidia-smi -L")
    found(of(findings, "of NICs"), "hosts alike", "warn", "8 on h0,2-3; 7 on h1", "ibstat")


def test_a_host_with_slower_links():
    cluster = catalog("dgx-h100", hosts=3)
    cluster = changed_links(cluster, lambda link: link._replace(gb_per_s=25.0), ends=("h1/NIC0", "rail0"))
    cluster = changed_links(cluster, lambda link: link._replace(lanes=9), ends=("h2/GPU0", "h2/nvswitch0"))
    cluster = changed_links(cluster, lambda link: link._replace(gb_per_s=32.0), ends=("h0/GPU0", "h0/NIC0"))
    findings = check_hosts(cluster)
    assert len(findings) == 3
    found(of(findings, "network ports"), "hosts alike", "warn", "8 x 50 on h0,2; 1 x 25, 7 x 50 on h1", "ethtool")
    found(of(findings, "GPU links"), "hosts alike", "warn", "8 x 18 links on h0-1", "on h2", "fabric manager")
    found(of(findings, "PCIe links"), "hosts alike", "warn", "on h1-2", "on h0", "LnkSta")


def test_a_host_whose_nics_are_elsewhere():
    moved = {("h1/GPU0", "h1/NIC0"): "NODE", ("h1/GPU0", "h1/NIC1"): "PIX"}
    findings = check_hosts(recoded(catalog("dgx-h100", hosts=3), moved))
    found(findings, "hosts alike", "warn", "nearest NICs differ", "GPU0 NIC0", "GPU0 NIC1", "on h0,2", "on h1")


def test_hosts_of_cores_that_differ():
    cluster = merge_hosts([named(catalog("cpu-2-socket"), "a"), named(catalog("cpu-1-socket"), "b")])
    assert of(check_hosts(cluster), "numbers of cores")


def named(topology, host):
    return replace(topology, devices=tuple(d._replace(host=host) for d in topology.devices))


def cluster_of(names, gpus=2):
    """Hosts of these names, with ranks in blocks in this order."""
    hosts = []
    for name in names:
        machine = without_devices(catalog("dgx-h100"), [f"GPU{i}" for i in range(gpus, 8)])
        hosts.append(named(machine, name))
    merged = merge_hosts(hosts)
    places = [(name, f"{name}/GPU{i}") for name in names for i in range(gpus)]
    return replace(merged, ranks=tuple(RankPlace(i, *place) for i, place in enumerate(places)))


def test_rank_order_in_blocks_of_hosts():
    found(check_rank_order(cluster_of(["node1", "node2", "node10"])), "rank order", "ok", "6 ranks")
    assert check_rank_order(catalog("dgx-h100")) == []
    assert check_rank_order(catalog("dgx-h100", hosts=12)) == []


def test_hosts_sorted_as_strings():
    findings = check_rank_order(cluster_of(["node1", "node10", "node2"]))
    found(findings, "rank order", "warn", "node10 comes before node2", "torchrun", "node02", "topocomm order")
    hosts_alone = replace(cluster_of(["node1", "node10", "node2"]), ranks=())
    found(check_rank_order(hosts_alone), "rank order", "info", "node10 comes before node2")
    assert order_of_hosts(["b2", "a1", "b10"]) == []  # an order that someone has chosen


def test_ranks_of_a_host_apart():
    findings = order_of_hosts(["a", "b", "a", "b"])
    found(findings, "rank order", "warn", "rank 2 is on a again, rank 3 is on b again", "--rank-by slot")
    assert order_of_hosts(["a", "a", "b"]) == order_of_hosts([]) == []


def placed(*devices, nics=None):
    machine = catalog("dgx-h100")
    ranks = tuple(RankPlace(i, "host0", d, nics[i] if nics else None) for i, d in enumerate(devices))
    return replace(machine, ranks=ranks)


def test_local_ranks_that_are_permuted():
    found(check_rank_order(placed("GPU0", "GPU1", "GPU2")), "rank order", "ok")
    findings = check_rank_order(placed("GPU0", "GPU2", "GPU1", "GPU3"))
    found(findings, "local ranks", "warn", "ranks 1, 2 on GPU2, GPU1", "--map-by slot:OVERSUBSCRIBE")


def test_ranks_that_share_a_gpu_while_others_idle():
    findings = check_rank_order(placed("GPU0", "GPU0", "GPU0"))
    found(
        findings, "local ranks", "warn", "GPU0 has 3 ranks, while GPU/1-7 has none".replace("GPU/", "GPU"), "LOCAL_RANK"
    )
    twice = placed(*(f"GPU{i // 2}" for i in range(16)))  # more ranks than GPUs have to share
    found(check_rank_order(twice), "rank order", "ok")


def test_ranks_with_far_nics():
    findings = check_rank_order(placed("GPU0", "GPU1", nics=["NIC0", "NIC5"]))
    found(findings, "rank order", "warn", "rank 1 on GPU1 uses NIC5, near is NIC1", "UCX_NET_DEVICES")
    found(check_rank_order(placed("GPU0", "GPU1", nics=["NIC0", "unheard"])), "rank order", "ok")


def test_local_ranks_of_the_launcher():
    def started(*pairs):
        return check_local_ranks([Started(host, local) for host, local in pairs])

    found(started(("a", 0), ("a", 1), ("b", 0)), "local ranks", "ok")
    found(
        started(("a", 0), ("a", 2), ("a", 1), ("a", 3)),
        "local ranks",
        "warn",
        "rank 1 has 2, rank 2 has 1",
        "instead of --oversubscribe",
    )
    found(started(("a", 0), ("b", 1), ("b", 0)), "local ranks", "warn", "b: local ranks", "rank 1 has 1")
    assert started(("a", None)) == []


def test_names_in_the_order_of_people():
    assert sorted(["n10", "n9", "n1a", "n1"], key=natural) == ["n1", "n1a", "n9", "n10"]
    assert sorted(["n" + "9" * 5000, "n1"], key=natural)[0] == "n1"
