"""What MPI libraries take, at the borders of their rules."""

import pytest

from topocomm import PlanError
from topocomm.simulation.libraries.mpi.mpi_rules import choose_mpi

MIB = 1 << 20


@pytest.mark.parametrize(
    ("library", "collective", "ranks", "payload_bytes", "expected"),
    [
        ("openmpi", "allreduce", 16, 9_999, ("recursive-doubling", 0)),
        ("openmpi", "allreduce", 16, 10_000, ("ring", 0)),
        ("openmpi", "allreduce", 16, 16 * MIB, ("ring", 0)),
        ("openmpi", "allreduce", 16, 16 * MIB + 4, ("ring", MIB)),
        ("openmpi", "broadcast", 4, 2_047, ("binomial", 0)),
        ("openmpi", "broadcast", 4, 2_048, ("split-binary", 1024)),
        ("openmpi", "broadcast", 4, MIB, ("split-binary", 8192)),
        ("openmpi", "broadcast", 4, 2 * MIB, ("chain", 128 << 10)),
        ("openmpi", "broadcast", 16, 4 * MIB, ("chain", 16 << 10)),
        ("openmpi", "broadcast", 16, 8 * MIB, ("chain", 64 << 10)),
        ("openmpi", "broadcast", 64, MIB, ("split-binary", 8192)),
        ("mpich", "allreduce", 16, 2_048, ("recursive-doubling", 0)),
        ("mpich", "allreduce", 16, 2_052, ("rabenseifner", 0)),
        ("mpich", "broadcast", 16, 65_536, ("scatter-doubling", 0)),
        ("mpich", "broadcast", 12, 65_536, ("scatter-ring", 0)),
    ],
)
def test_rules(library, collective, ranks, payload_bytes, expected):
    assert choose_mpi(library, collective, ranks, payload_bytes) == expected


def test_what_is_not_known_is_refused():
    with pytest.raises(PlanError, match="expected one of openmpi, mpich"):
        choose_mpi("lam", "allreduce", 4, 8)
    with pytest.raises(PlanError, match="the rules of mpich are known for allreduce, broadcast, allgather only"):
        choose_mpi("mpich", "scan", 4, 8)


@pytest.mark.parametrize(
    ("ranks", "payload_bytes", "expected"),
    [
        (2, 7, "ring"),
        (3, 262_144, "rabenseifner"),
        (8, 8_191, "recursive-doubling"),
        (8, 8_192, "rabenseifner"),
        (16, 63, "ring"),
        (64, 262_143, "recursive-doubling"),
        (128, 131_071, "reduce-broadcast"),
        (10_000, 20_000, "recursive-doubling"),
        (10_000, 40_000, "rabenseifner"),
    ],
)
def test_sums_of_newer_open_mpi(ranks, payload_bytes, expected):
    assert choose_mpi("openmpi", "allreduce", ranks, payload_bytes, version=(5, 0)).algorithm == expected
