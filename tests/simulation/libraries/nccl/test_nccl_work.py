"""NCCL's algorithms in the simulator: as their closed forms say, and contention where several share a link."""

import pytest

import topocomm
from tests.simulation.libraries.nccl.ratios import ratio
from topocomm import PlanError
from topocomm.planning.cost.events import simulate
from topocomm.planning.libraries.library_figures import DEFAULTS
from topocomm.simulation.libraries import names, work_of
from topocomm.simulation.libraries.nccl.nccl_work import MOST_MESSAGES


@pytest.mark.parametrize("payload_bytes", [8 << 10, 1 << 20, 64 << 20])
@pytest.mark.parametrize("collective", ["allreduce", "allgather"])
@pytest.mark.parametrize(
    ("system", "hosts"),
    [("dgx-h100", 1), ("dgx-a100", 2), ("dgx-a100", 4), ("v100-4", 1), ("v100-4", 4), ("rtx4090-pcie-4", 1)],
)
def test_rings_take_what_their_closed_form_says(system, hosts, collective, payload_bytes):
    """Or a little less: the closed form adds the latencies of the longest way to the narrowest link's time."""
    assert 0.84 < ratio("nccl-ring", system, hosts, payload_bytes, collective) < 1.03


def test_pat_needs_one_rank_a_host():
    topology = topocomm.catalog("dgx-h100", hosts=5)
    ends = [end for end in topology.endpoints if end.endswith("GPU0")]
    work = work_of("nccl-pat", topology, "allgather", 5 << 20, ranks=ends)
    assert len(work) == 5 * 3
    rate = 1 / DEFAULTS["efficiency.network"]
    assert work.sent_bytes == pytest.approx(5 * 4 * (1 << 20) * rate, abs=15)  # each rank receives 4 parts
    with pytest.raises(PlanError, match="expected one rank a host"):
        work_of("nccl-pat", topology, "allgather", 5 << 20)


def test_a_ring_conserves_bytes_and_groups_what_is_large():
    topology = topocomm.catalog("dgx-a100", hosts=2)
    work = work_of("nccl-ring", topology, "allreduce", 1 << 30)
    inside, across = (14 / 16 / DEFAULTS[f"efficiency.{kind}"] for kind in ("nvlink", "network"))
    wire = 2 * 15 * (1 << 30) * (inside + across / 7)  # 14 of 16 hops are inside hosts
    assert work.sent_bytes == pytest.approx(wire, rel=1e-6)
    large = topocomm.catalog("dgx-a100", hosts=16)
    grouped = work_of("nccl-ring", large, "allreduce", 1 << 30)
    assert len(grouped) == 8 * 128 < MOST_MESSAGES
    assert ratio("nccl-ring", "dgx-a100", 16, 1 << 30) == pytest.approx(1, rel=0.05)


@pytest.mark.parametrize("collective", ["broadcast", "reduce"])
@pytest.mark.parametrize(("system", "hosts"), [("dgx-a100", 1), ("v100-4", 3)])
def test_chains_from_and_to_rank_0(system, hosts, collective):
    topology = topocomm.catalog(system, hosts=hosts)
    n = len(topology.endpoints)
    work = work_of("nccl-ring", topology, collective, 1 << 10)
    heads = [task for task in range(len(work)) if work.labels[work.label[task]] != "following"]
    ends = (work.src[heads], work.dst[heads]) if collective == "broadcast" else (work.dst[heads], work.src[heads])
    assert sorted(ends[1].tolist()) == list(range(1, n))  # one channel: every rank but the root once
    assert 0 in ends[0]
    sizes = [256 << 20, 512 << 20]
    times = [simulate(work_of("nccl-ring", topology, collective, size), topology).total_us for size in sizes]
    kind = "network" if hosts > 1 else "nvlink"
    rate = (25 if hosts > 1 else 300) * DEFAULTS[f"efficiency.{kind}"]
    assert (sizes[1] - sizes[0]) / (times[1] - times[0]) / 1e3 == pytest.approx(rate, rel=0.05)


def test_what_the_tuner_takes():
    topology = topocomm.catalog("dgx-h100")
    assert set(work_of("nccl", topology, "allreduce", 1 << 28).labels) == {
        "allreduce NVLS reduce",
        "allreduce NVLS multicast",
    }
    assert work_of("nccl", topology, "allreduce", 8).labels == ("allreduce ring LL",)
    assert {"nccl", "nccl-ring", "nccl-tree"} <= set(names("allreduce"))


def test_fitted_figures_are_taken():
    topology = topocomm.catalog("v100-4")
    slow = topocomm.topology.model.Topology(
        **{
            **{name: getattr(topology, name) for name in ("name", "source", "devices", "links", "pairs")},
            "facts": {"calibration": {"figures": {"nccl.start_us.LL": 66.0}}},
        }
    )
    before_us, after_us = (simulate(work_of("nccl-ring", t, "allreduce", 64), t).total_us for t in (topology, slow))
    assert after_us - before_us == pytest.approx(66.0 - DEFAULTS["nccl.start_us.LL"])
