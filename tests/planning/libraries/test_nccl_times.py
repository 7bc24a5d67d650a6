"""NCCL's closed forms: limits by hand, and what must hold for every size."""

from itertools import pairwise

import pytest

import topocomm
from topocomm import PlanError
from topocomm.planning.libraries.job_shape import job_shape
from topocomm.planning.libraries.library_figures import DEFAULTS
from topocomm.planning.libraries.nccl_times import (
    TunerSettings,
    direct_us,
    messages_us,
    nccl_us,
    nvls_us,
    rates_of,
    rccl_us,
    ring_us,
    tree_us,
)

GIB = 1 << 30


def shape(system, hosts=1):
    return job_shape(topocomm.catalog(system, hosts=hosts))


def test_a_long_ring_moves_at_the_links_rate():
    own = shape("dgx-a100")
    rate = 300 * DEFAULTS["efficiency.nvlink"] * 1e3
    bytes_us = 2 * 7 / 8 * GIB / rate
    assert ring_us(own, DEFAULTS, "allreduce", GIB, "Simple") == pytest.approx(bytes_us + 8.4 + 14 * 3.4)
    assert ring_us(own, DEFAULTS, "allgather", GIB, "Simple") == pytest.approx(bytes_us / 2 + 8.4 + 7 * 3.4)


def test_a_short_ring_is_its_start_and_hops():
    own = shape("v100-4", 4)
    hops_us = 22 * DEFAULTS["nccl.hop_us.nvlink.LL"] + 8 * DEFAULTS["nccl.hop_us.network.LL"]  # 30 of 16 ranks
    start_us = DEFAULTS["nccl.start_us.LL"]
    assert ring_us(own, DEFAULTS, "allreduce", 4, "LL") == pytest.approx(start_us + hops_us, rel=1e-3)


def test_a_tree_has_logarithmically_many_hops_between_hosts():
    times = [tree_us(shape("v100-4", hosts), DEFAULTS, 4, "LL") for hosts in (2, 4, 8, 16)]
    steps = [b - a for a, b in pairwise(times)]
    assert steps == pytest.approx([2 * DEFAULTS["nccl.hop_us.network.LL"]] * 3, rel=1e-2)


def test_few_bytes_take_few_channels():
    own = shape("v100-4", 4)
    assert rates_of(own, DEFAULTS, "LL", 64, ring=False).count == 1
    assert rates_of(own, DEFAULTS, "LL", 8192, ring=False).count == 2
    assert rates_of(own, DEFAULTS, "LL", 1 << 24, ring=False).count == 4
    assert rates_of(own, DEFAULTS, "LL", 65536, ring=True).count == 1  # a ring's threshold is by rank


@pytest.mark.parametrize("system", ["dgx-h100", "v100-4", "mi300x-8", "a100-pcie-2", "gb200-nvl72"])
@pytest.mark.parametrize(
    "collective", ["allreduce", "allgather", "reduce_scatter", "broadcast", "alltoall", "sendrecv"]
)
def test_time_grows_at_most_with_the_bytes(system, collective):
    """Within one algorithm; where NCCL changes it, four times the bytes take no less than half the time."""
    own = shape(system)
    times = [nccl_us(own, DEFAULTS, collective, 4**power) for power in range(1, 17)]
    assert all(a > 0 for a in times)
    assert all(0.5 * a < b < 4.5 * a for a, b in pairwise(times))


def test_switches_that_reduce_beat_every_exchange_of_messages():
    own = shape("dgx-h100")
    assert nvls_us(own, DEFAULTS, GIB) < ring_us(own, DEFAULTS, "allreduce", GIB, "Simple")
    assert GIB / nvls_us(own, DEFAULTS, GIB) / 1e3 < own.inner_gb_per_s


def test_rccl_exchanges_all_with_all_where_that_is_shorter():
    own = shape("mi300x-8")
    assert rccl_us(own, DEFAULTS, "allreduce", 1024) == direct_us(own, DEFAULTS, 1024)
    assert rccl_us(own, DEFAULTS, "allreduce", 512) == nccl_us(
        own, DEFAULTS, "allreduce", 512, TunerSettings(has_ll128=False)
    )
    assert rccl_us(own, DEFAULTS, "allreduce", GIB) < direct_us(own, DEFAULTS, GIB)


def test_alltoall_between_hosts_is_bound_by_their_ports():
    own = shape("dgx-a100", 2)
    far_us = GIB / 2 * 8 / (200 * DEFAULTS["efficiency.network"]) / 1e3
    assert messages_us(own, DEFAULTS, "alltoall", GIB) == pytest.approx(far_us, rel=1e-3)


def test_other_collectives_are_refused():
    with pytest.raises(PlanError, match="NCCL has none of this name"):
        nccl_us(shape("dgx-a100"), DEFAULTS, "scan", 8)
