"""Switches that reduce, in the simulator."""

import pytest

import topocomm
from tests.simulation.libraries.nccl.ratios import ratio
from topocomm import PlanError
from topocomm.simulation.libraries import work_of


def test_switches_that_reduce():
    for payload_bytes in (1 << 10, 1 << 20, 1 << 30):
        assert ratio("nccl-nvls", "dgx-h100", 1, payload_bytes) == pytest.approx(1, rel=0.02)
    with pytest.raises(PlanError, match="expected one NVLink domain with switches that reduce"):
        work_of("nccl-nvls", topocomm.catalog("dgx-a100"), "allreduce", 1 << 20)


@pytest.mark.parametrize("hosts", [2, 4, 5])
def test_switches_that_reduce_and_trees_over_hosts(hosts):
    for payload_bytes in (1 << 10, 1 << 30):
        assert 0.97 < ratio("nccl-nvls-tree", "dgx-h100", hosts, payload_bytes) < 1.03
    work = work_of("nccl-nvls-tree", topocomm.catalog("dgx-h100", hosts=hosts), "allreduce", 1 << 30)
    between = work.payload_bytes[[work.labels[label] == "allreduce NVLS tree" for label in work.label]]
    assert len(between) == 8 * 2 * 2 * (hosts - 1)  # two trees a rank, up and down
    with pytest.raises(PlanError, match="expected several hosts whose switches reduce"):
        work_of("nccl-nvls-tree", topocomm.catalog("dgx-a100", hosts=2), "allreduce", 8)
