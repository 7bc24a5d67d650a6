"""MPI's algorithms in the simulator, beside their closed forms."""

import numpy as np
import pytest

import topocomm
from topocomm import PlanError
from topocomm.planning.cost.events import simulate
from topocomm.planning.libraries.job_shape import job_shape
from topocomm.planning.libraries.library_figures import DEFAULTS
from topocomm.simulation.libraries import work_of
from topocomm.simulation.libraries.mpi.mpi_messages import Messages
from topocomm.simulation.libraries.mpi.mpi_rules import MpiChoice
from topocomm.simulation.libraries.mpi.mpi_times import allreduce_us


@pytest.mark.parametrize("payload_bytes", [1 << 10, 32 << 10, 1 << 20])
@pytest.mark.parametrize("algorithm", ["recursive-doubling", "rabenseifner", "ring", "han"])
@pytest.mark.parametrize(("system", "hosts"), [("hgx-a100-4", 1), ("hgx-a100-4", 4)])
def test_sums_take_what_their_closed_form_says(system, hosts, algorithm, payload_bytes):
    """Rings a little less: the closed form counts the slowest hop's bytes for every round."""
    topology = topocomm.catalog(system, hosts=hosts)
    closed_us = allreduce_us(Messages(job_shape(topology), DEFAULTS), payload_bytes, MpiChoice(algorithm))
    simulated_us = simulate(work_of(f"mpi-{algorithm}", topology, "allreduce", payload_bytes), topology).total_us
    assert 0.8 < simulated_us / closed_us < 1.06


@pytest.mark.parametrize(("algorithm", "sends"), [("binomial", 15), ("chain", 15)])
def test_a_broadcast_reaches_every_rank_once(algorithm, sends):
    topology = topocomm.catalog("hgx-a100-4", hosts=4)
    work = work_of(f"mpi-{algorithm}", topology, "broadcast", 1000)
    assert len(work) == sends
    assert sorted(work.dst.tolist()) == list(range(1, 16))
    known = {0}
    for task in np.argsort(simulate(work, topology).arrival_us, kind="stable"):
        assert int(work.src[task]) in known  # no rank sends what it has not received
        known.add(int(work.dst[task]))


def test_a_chain_overlaps_its_segments():
    topology = topocomm.catalog("hgx-a100-4", hosts=2)
    one, many = (
        simulate(work_of("mpi-chain", topology, "broadcast", size), topology).total_us for size in (128 << 10, 8 << 20)
    )
    assert many < 40 * one  # 64 segments over 7 hops, not 64 times the whole way


def test_what_open_mpi_takes():
    topology = topocomm.catalog("hgx-a100-4")
    assert work_of("openmpi", topology, "allreduce", 1 << 10).labels == ("allreduce recursive-doubling",)
    assert work_of("openmpi", topology, "allreduce", 1 << 20).labels == ("allreduce ring",)
    assert work_of("mpich", topology, "allreduce", 1 << 20).labels == ("allreduce rabenseifner",)


@pytest.mark.parametrize("n", [2, 3, 4, 5, 7, 8, 12, 13])
@pytest.mark.parametrize(("algorithm", "passes"), [("recursive-doubling", 1), ("rabenseifner", 2)])
def test_every_rank_hears_of_every_other(n, algorithm, passes):
    """A message brings what its source had and what the tasks it waits for brought; also of odd numbers of ranks."""
    topology = topocomm.catalog("cpu-2-socket")
    work = work_of(f"mpi-{algorithm}", topology, "allreduce", 1 << 12, ranks=topology.endpoints[:n])
    levels = n.bit_length() - 1
    rest = n - (1 << levels)
    assert len(work) == 2 * rest + passes * levels * (1 << levels)
    brought, known = [], [{rank} for rank in range(n)]
    for task in range(len(work)):
        waits = work.after[work.after_starts[task] : work.after_starts[task + 1]].tolist()
        own = {int(work.src[task])}.union(*(brought[w] for w in waits if work.dst[w] == work.src[task]))
        own |= set().union(*(brought[w] for w in waits if work.src[w] == work.src[task]))
        brought.append(own)
        known[int(work.dst[task])] |= own
    assert known == [set(range(n))] * n


def test_han_needs_powers_of_two():
    topology = topocomm.catalog("hgx-a100-4", hosts=3)
    with pytest.raises(PlanError, match=r"expected a power of two of ranks, got 3"):
        work_of("mpi-han", topology, "allreduce", 1 << 10)
    assert len(work_of("mpi-ring", topology, "allreduce", 1 << 10)) == 22 * 12
