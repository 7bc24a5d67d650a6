"""MPI's closed forms: counts of rounds, and what must hold between them."""

import pytest

import topocomm
from topocomm import PlanError
from topocomm.planning.libraries.job_shape import job_shape
from topocomm.planning.libraries.library_figures import DEFAULTS
from topocomm.simulation.libraries.mpi.mpi_messages import Messages
from topocomm.simulation.libraries.mpi.mpi_rules import MpiChoice
from topocomm.simulation.libraries.mpi.mpi_times import allgather_us, allreduce_us, broadcast_us, mpi_us


def messages(hosts):
    return Messages(job_shape(topocomm.catalog("v100-4", hosts=hosts)), DEFAULTS)


def test_recursive_doubling_has_a_round_for_each_doubling():
    near, far = (DEFAULTS["mpi.call_us"] + DEFAULTS[f"mpi.{kind}_us"] for kind in ("memory", "network"))
    for hosts, across in ((1, 0), (2, 1), (16, 4)):
        us = allreduce_us(messages(hosts), 0, MpiChoice("recursive-doubling"))
        assert us == pytest.approx(2 * near + across * far)


@pytest.mark.parametrize("hosts", [1, 4, 16])
def test_long_sums_prefer_fewer_bytes_and_short_ones_fewer_rounds(hosts):
    own = messages(hosts)
    by = {name: MpiChoice(name) for name in ("recursive-doubling", "rabenseifner", "ring")}
    assert allreduce_us(own, 64, by["recursive-doubling"]) < allreduce_us(own, 64, by["ring"])
    assert allreduce_us(own, 1 << 26, by["rabenseifner"]) < allreduce_us(own, 1 << 26, by["recursive-doubling"])
    assert allreduce_us(own, 1 << 26, by["ring"]) < allreduce_us(own, 1 << 26, by["recursive-doubling"])


def test_sums_of_device_memory_go_through_the_host():
    shape = job_shape(topocomm.catalog("v100-4", hosts=2))
    for nbytes in (8, 1 << 22):
        host, device = (mpi_us(shape, DEFAULTS, "allreduce", nbytes, on_device=on) for on in (False, True))
        copies = 2 * (DEFAULTS["mpi.copy_us"] + nbytes / DEFAULTS["mpi.copy_gb_per_s"] / 1e3)
        assert device - host == pytest.approx(copies)


def test_a_ping_pong_of_several_pairs_shares_each_direction():
    shape = job_shape(topocomm.catalog("v100-4", hosts=2))
    one, two, four = (mpi_us(shape, DEFAULTS, "message", 1 << 24, pairs=pairs) for pairs in (1, 2, 4))
    assert one == two
    assert four / two == pytest.approx(2, rel=0.05)


@pytest.mark.parametrize("collective", ["allreduce", "broadcast", "allgather"])
@pytest.mark.parametrize("library", ["openmpi", "mpich"])
def test_every_size_has_a_time(collective, library):
    shape = job_shape(topocomm.catalog("v100-4", hosts=4))
    times = [mpi_us(shape, DEFAULTS, collective, 4**power, library=library) for power in range(1, 14)]
    assert all(time > 0 for time in times)
    assert times[-1] > times[0] * 100


def test_algorithms_that_are_not_known():
    own = messages(2)
    with pytest.raises(PlanError, match="expected recursive-doubling, rabenseifner, ring, reduce-broadcast or han"):
        allreduce_us(own, 8, MpiChoice("linear"))
    with pytest.raises(PlanError, match="expected binomial, chain"):
        broadcast_us(own, 8, MpiChoice("linear"))
    assert allgather_us(own, 1 << 20, MpiChoice("ring")) > 0
