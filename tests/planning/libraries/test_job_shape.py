"""What libraries see of ranks on catalogue systems."""

import pytest

import topocomm
from topocomm import PlanError
from topocomm.planning.libraries.job_shape import job_shape


@pytest.mark.parametrize(
    ("system", "hosts", "expected"),
    [
        ("dgx-h100", 1, (1, 8, "nvlink", 450.0, 450.0, 0.0, 0, 0, True, "hopper")),
        ("dgx-h100", 4, (4, 8, "nvlink", 450.0, 450.0, 400.0, 8, 0, True, "hopper")),
        ("v100-4", 2, (2, 4, "nvlink", 150.0, 50.0, 25.0, 2, 3, False, "volta")),
        ("mi300x-8", 1, (1, 8, "xgmi", 448.0, 64.0, 0.0, 0, 7, False, "amd")),
        ("gb200-nvl72", 1, (1, 72, "nvlink", 900.0, 900.0, 0.0, 0, 0, True, "blackwell")),
        ("gb200-nvl72", 2, (2, 72, "nvlink", 900.0, 900.0, 3600.0, 72, 0, True, "blackwell")),
        ("rtx4090-pcie-4", 1, (1, 4, "pcie", 32.0, 32.0, 0.0, 0, 0, False, "ada")),
        ("a100-pcie-2", 1, (1, 2, "pcie", 16.0, 16.0, 0.0, 0, 0, False, "ampere")),
        ("cpu-2-socket", 2, (2, 16, "memory", 10.0, 10.0, 12.5, 1, 0, False, "unknown")),
    ],
)
def test_catalogue_systems(system, hosts, expected):
    shape = job_shape(topocomm.catalog(system, hosts=hosts))
    assert (
        shape.hosts,
        shape.per_host,
        shape.inner,
        shape.inner_gb_per_s,
        shape.pair_gb_per_s,
        shape.network_gb_per_s,
        shape.nics,
        shape.peers,
        shape.reduces,
        shape.generation,
    ) == expected


def test_a_part_of_a_mesh_has_fewer_links():
    topology = topocomm.catalog("v100-4")
    assert job_shape(topology, topology.endpoints[:2]).inner_gb_per_s == 50.0


def test_ports_of_endpoints_without_a_rank_are_not_used():
    topology = topocomm.catalog("dgx-h100", hosts=2)
    firsts = [end for end in topology.endpoints if end.endswith(("GPU0", "GPU1"))]
    assert (job_shape(topology, firsts).nics, job_shape(topology, firsts).network_gb_per_s) == (2, 100.0)
    shared = topocomm.catalog("v100-4", hosts=2)  # two ports for four GPUs: any of these may use both
    assert job_shape(shared, [shared.endpoints[0], shared.endpoints[4]]).network_gb_per_s == 25.0


def test_other_jobs_are_refused():
    topology = topocomm.catalog("v100-4", hosts=2)
    with pytest.raises(PlanError, match="needs 2 ranks or more, got 1"):
        job_shape(topology, topology.endpoints[:1])
    with pytest.raises(PlanError, match=r"ranks on groups \[4, 2\]: expected as many on each host"):
        job_shape(topology, topology.endpoints[:6])
    ends = topology.endpoints
    with pytest.raises(PlanError, match=r"host by host"):
        job_shape(topology, (ends[0], ends[4], ends[1], ends[5]))
