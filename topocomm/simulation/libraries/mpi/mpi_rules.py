"""Which algorithm an MPI library takes: the fixed decision rules of Open MPI's `coll_tuned` and of MPICH.

Sources: Open MPI `ompi/mca/coll/tuned/coll_tuned_decision_fixed.c` (4.0; sums of 4.1 and later), MPICH `src/mpi/coll`
and the defaults of its CVARs (`MPIR_CVAR_ALLREDUCE_SHORT_MSG_SIZE`, `MPIR_CVAR_BCAST_*`).
"""

from __future__ import annotations

from typing import NamedTuple

from topocomm.errors import PlanError

KIB, MIB = 1 << 10, 1 << 20


class MpiChoice(NamedTuple):
    """An algorithm, and the bytes of its segments; 0 where it has none."""

    algorithm: str
    segment_bytes: int = 0


def choose_mpi(
    library: str, collective: str, ranks: int, payload_bytes: int, *, version: tuple[int, ...] = (4, 0)
) -> MpiChoice:
    """Return what a library runs.

    Args:
        library: "openmpi" or "mpich".
        version: Of Open MPI: from 4.1 on its sums go by tables of measurements. Its broadcasts are those of 4.0 here.
        collective: Our name.
        ranks: Number of ranks.
        payload_bytes: As plans count it.

    Raises:
        PlanError: The rules of this collective are not known here.
    """
    rules = {"openmpi": _OPEN_MPI, "mpich": _MPICH}
    if library not in rules:
        raise PlanError(f"MPI library {library!r}: expected one of {', '.join(rules)}")
    if collective not in rules[library]:
        raise PlanError(
            f"collective {collective!r}: the rules of {library} are known for {', '.join(rules[library])} only"
        )
    if library == "openmpi" and collective == "allreduce" and version >= (4, 1):
        return _open_mpi_sum_by_table(ranks, payload_bytes)
    return rules[library][collective](ranks, payload_bytes)


_DOUBLING, _RING, _HALVING = MpiChoice("recursive-doubling"), MpiChoice("ring"), MpiChoice("rabenseifner")
_SEGMENTED, _REDUCE = MpiChoice("ring", MIB), MpiChoice("reduce-broadcast")
_END = 1 << 62
_SUMS: tuple[tuple[int, tuple[tuple[int, MpiChoice], ...]], ...] = (
    (
        4,
        (
            (8, _RING),
            (4 * KIB, _DOUBLING),
            (8 * KIB, _RING),
            (16 * KIB, _DOUBLING),
            (64 * KIB, _RING),
            (256 * KIB, _SEGMENTED),
            (_END, _HALVING),
        ),
    ),
    (8, ((16, _RING), (8 * KIB, _DOUBLING), (_END, _HALVING))),
    (16, ((8 * KIB, _DOUBLING), (_END, _HALVING))),
    (32, ((64, _SEGMENTED), (4 * KIB, _DOUBLING), (_END, _HALVING))),
    (64, ((128, _SEGMENTED), (_END, _HALVING))),
    (128, ((256 * KIB, _DOUBLING), (_END, _HALVING))),
    (256, ((128 * KIB, _REDUCE), (256 * KIB, _DOUBLING), (_END, _HALVING))),
    (512, ((4 * KIB, _REDUCE), (_END, _HALVING))),
    (2048, ((2 * KIB, _REDUCE), (16 * KIB, _DOUBLING), (_END, _HALVING))),
    (4096, ((2 * KIB, _REDUCE), (4 * KIB, _SEGMENTED), (16 * KIB, _DOUBLING), (_END, _HALVING))),
    (_END, ((2 * KIB, _REDUCE), (16 * KIB, _SEGMENTED), (32 * KIB, _DOUBLING), (_END, _HALVING))),
)
"""Sums of commutative operators since Open MPI 4.1: for fewer ranks than the first number, fewer bytes than these."""


def _open_mpi_sum_by_table(ranks: int, payload_bytes: int) -> MpiChoice:
    by_bytes = next(own for most, own in _SUMS if ranks < most)
    return next(choice for most, choice in by_bytes if payload_bytes < most)


def _open_mpi_allreduce(ranks: int, payload_bytes: int) -> MpiChoice:
    if payload_bytes < 10_000:
        return MpiChoice("recursive-doubling")
    if payload_bytes <= ranks * MIB:
        return MpiChoice("ring")
    return MpiChoice("ring", MIB)


def _open_mpi_broadcast(ranks: int, payload_bytes: int) -> MpiChoice:
    """Binomial, split binary tree, or a chain with segments that grow: linear conditions on ranks and bytes."""
    if payload_bytes < 2048:
        return MpiChoice("binomial")
    if payload_bytes < 370_728:
        return MpiChoice("split-binary", KIB)
    if ranks < 1.6134e-6 * payload_bytes + 2.1102:
        return MpiChoice("chain", 128 * KIB)
    if ranks < 13:
        return MpiChoice("split-binary", 8 * KIB)
    if ranks < 2.3679e-6 * payload_bytes + 1.1787:
        return MpiChoice("chain", 64 * KIB)
    if ranks < 3.2118e-6 * payload_bytes + 8.7936:
        return MpiChoice("chain", 16 * KIB)
    return MpiChoice("split-binary", 8 * KIB)


def _open_mpi_allgather(ranks: int, payload_bytes: int) -> MpiChoice:
    if ranks & (ranks - 1) == 0 and payload_bytes < 50_000:
        return MpiChoice("recursive-doubling")
    return MpiChoice("ring")


def _mpich_allreduce(ranks: int, payload_bytes: int) -> MpiChoice:
    return MpiChoice("recursive-doubling" if payload_bytes <= 2048 or payload_bytes < 4 * ranks else "rabenseifner")


def _mpich_broadcast(ranks: int, payload_bytes: int) -> MpiChoice:
    if payload_bytes < 12_288 or ranks < 8:
        return MpiChoice("binomial")
    if payload_bytes < 524_288 and ranks & (ranks - 1) == 0:
        return MpiChoice("scatter-doubling")
    return MpiChoice("scatter-ring")


def _mpich_allgather(ranks: int, payload_bytes: int) -> MpiChoice:
    if payload_bytes < 524_288 and ranks & (ranks - 1) == 0:
        return MpiChoice("recursive-doubling")
    return MpiChoice("ring")


_OPEN_MPI = {
    "allreduce": _open_mpi_allreduce,
    "broadcast": _open_mpi_broadcast,
    "allgather": _open_mpi_allgather,
}
_MPICH = {"allreduce": _mpich_allreduce, "broadcast": _mpich_broadcast, "allgather": _mpich_allgather}
