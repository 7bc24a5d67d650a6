"""Algorithms by name."""

from __future__ import annotations

from collections.abc import Sequence

from topocomm.errors import PlanError
from topocomm.planning.cost.simulated_work import Work, WorkBuilder
from topocomm.planning.request import place_ranks
from topocomm.simulation.libraries import plain_ring
from topocomm.simulation.libraries.library_algorithm import LibraryAlgorithm
from topocomm.simulation.libraries.mpi import mpi_work
from topocomm.simulation.libraries.nccl import nccl_work
from topocomm.topology.model import Topology

_BY_NAME = {each.name: each for each in (*plain_ring.ALGORITHMS, *nccl_work.ALGORITHMS, *mpi_work.ALGORITHMS)}


def names(collective: str | None = None) -> tuple[str, ...]:
    """Return the names of all algorithms, or of those that have a collective."""
    return tuple(name for name, each in _BY_NAME.items() if collective is None or collective in each.collectives)


def algorithm(name: str) -> LibraryAlgorithm:
    """Return an algorithm.

    Raises:
        PlanError: There is none of this name; the message lists them.
    """
    if name not in _BY_NAME:
        raise PlanError(f"algorithm {name!r}: expected one of {', '.join(_BY_NAME)}")
    return _BY_NAME[name]


def work_of(
    name: str, topology: Topology, collective: str, payload_bytes: int, *, ranks: Sequence[str] | None = None
) -> Work:
    """Return the work of a library's algorithm.

    Args:
        name: One of `names()`.
        topology: The machine.
        collective: As in `topocomm.plan`.
        payload_bytes: As in `topocomm.plan`: bytes of one rank's value; of an allgather or reduce_scatter the whole.
        ranks: Endpoint id of every rank; None puts one rank on every endpoint.

    Raises:
        PlanError: There is no algorithm of this name, it lacks the collective, or a rank is on no endpoint.
    """
    chosen = algorithm(name)
    if collective not in chosen.collectives:
        raise PlanError(f"algorithm {name}: expected one of {', '.join(chosen.collectives)}, got {collective}")
    if payload_bytes < 0:
        raise PlanError(f"algorithm {name}: expected a payload of at least 0 bytes, got {payload_bytes}")
    endpoints = place_ranks(topology, ranks)
    if name.startswith("nccl") and (kinds := {topology.by_id[end].kind for end in endpoints}) != {"gpu"}:
        kind = min(kinds - {"gpu"})
        raise PlanError(f"algorithm {name}: NCCL joins GPUs, and {topology.name!r} has ranks on a {kind}; take openmpi")
    if len(endpoints) == 1:
        return WorkBuilder(endpoints).build()
    return chosen.build(topology, collective, payload_bytes, endpoints)
