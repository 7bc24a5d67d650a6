"""One algorithm of a library, as the registry lists it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from topocomm.planning.cost.simulated_work import Work
from topocomm.topology.model import Topology

Build = Callable[[Topology, str, int, tuple[str, ...]], Work]
"""(topology, collective, payload bytes, endpoint of every rank) -> work."""


class LibraryAlgorithm(NamedTuple):
    """An algorithm by name.

    Attributes:
        name: As users give it ("nccl-ring").
        summary: What it is, in one line.
        collectives: Those that it has.
        build: Returns its work; there are two ranks or more. The payload is counted as in `topocomm.plan`: one rank's
            value, of an allgather or reduce_scatter the whole.
    """

    name: str
    summary: str
    collectives: tuple[str, ...]
    build: Build
