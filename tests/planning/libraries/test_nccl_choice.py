"""What NCCL's tuner takes, by size, host count and version."""

import pytest

import topocomm
from topocomm.planning.libraries.job_shape import job_shape
from topocomm.planning.libraries.nccl_choice import bus_gb_per_s, channels, choices, choose


def shape(system, hosts=1):
    return job_shape(topocomm.catalog(system, hosts=hosts))


@pytest.mark.parametrize(
    ("system", "hosts", "payload_bytes", "expected"),
    [
        ("dgx-a100", 1, 8, ("ring", "LL")),
        ("dgx-a100", 1, 1 << 30, ("ring", "Simple")),
        ("dgx-a100", 16, 8, ("tree", "LL")),
        ("dgx-a100", 16, 1 << 20, ("tree", "LL128")),
        ("dgx-h100", 1, 1 << 28, ("nvls", "Simple")),
        ("dgx-h100", 2, 1 << 28, ("nvls-tree", "Simple")),
        ("dgx-h100", 16, 8 << 30, ("nvls-tree", "Simple")),
        ("dgx-h100", 16, 1 << 20, ("tree", "LL128")),
        ("rtx4090-pcie-4", 1, 1 << 28, ("ring", "Simple")),
    ],
)
def test_allreduce(system, hosts, payload_bytes, expected):
    assert choose(shape(system, hosts), "allreduce", payload_bytes)[:2] == expected


def test_versions_without_nvls_and_without_ll128():
    assert choose(shape("dgx-h100"), "allreduce", 1 << 28, version=(2, 16)).algorithm == "ring"
    protocols = {c.protocol for c in choices(shape("dgx-a100"), "allreduce", 1 << 20, has_ll128=False)}
    assert protocols == {"LL", "Simple"}
    assert "LL128" not in {c.protocol for c in choices(shape("rtx4090-pcie-4"), "allreduce", 1 << 20)}


def test_a_broadcast_of_several_hosts_changes_to_simple_later_with_more_of_them():
    """NCCL counts a hop of 28 us for every rank by Simple, so the change moves with the number of ranks."""

    def change(hosts):
        own = shape("v100-4", hosts)
        sizes = (1 << power for power in range(16, 30))
        return next(s for s in sizes if choose(own, "broadcast", s, version=(2, 8), has_ll128=False)[1] == "Simple")

    assert change(2) < change(8) < change(32)


def test_pat_is_for_one_rank_a_host():
    topology = topocomm.catalog("dgx-h100", hosts=4)
    one_each = job_shape(topology, [end for end in topology.endpoints if end.endswith("GPU0")])
    assert "pat" in {c.algorithm for c in choices(one_each, "allgather", 1 << 20)}
    assert "pat" not in {c.algorithm for c in choices(shape("dgx-h100", 4), "allgather", 1 << 20)}
    assert "pat" not in {c.algorithm for c in choices(one_each, "allgather", 1 << 20, version=(2, 20))}


def test_channels_and_bus():
    assert channels(shape("v100-4")) == 12
    assert channels(shape("v100-4", 4)) == 4
    assert channels(shape("dgx-h100", 4)) == 16
    assert bus_gb_per_s(shape("dgx-a100")) == 235.0  # NCCL's limit for Ampere
    assert bus_gb_per_s(shape("v100-4", 2)) == 25.0
