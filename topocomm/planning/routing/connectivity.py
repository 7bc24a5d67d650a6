"""Whether links and relaying endpoints join the endpoints of all ranks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from topocomm.errors import PlanError
from topocomm.planning.collectives import Collective
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.routing.routes import Ints
from topocomm.topology.draw.names import ranges

_SHOWN = 4
"""Pieces that a message lists."""
_LONG = 60
"""Characters of a list of endpoints above which it is cut."""


def refuse_disconnected(paths: PathFinder, collective: Collective, endpoints: Sequence[str]) -> None:
    """Check that links join the ranks' endpoints, both ways where every rank needs something of every other.

    Ranks relay values; endpoints without a rank do not.

    Raises:
        PlanError: The machine falls in pieces; names some of them.
    """
    classes = paths.classes
    devices = np.array([classes.index[end] for end in endpoints], dtype=np.int64)
    open_ = ~classes.is_end
    open_[devices] = True
    src, dst = paths.link_ends
    kept = open_[src] & open_[dst]
    src, dst = src[kept], dst[kept]
    both_ways = collective.name == "allreduce" and not collective.shards
    both_ways |= collective.name in ("allgather", "reduce_scatter", "alltoall") and (
        all(collective.parts) or not any(collective.parts)
    )
    if not both_ways:
        src, dst = np.concatenate([src, dst]), np.concatenate([dst, src])
    pieces: list[list[str]] = []
    left = np.unique(devices, return_index=True)[1]
    left.sort()
    while len(left) and len(pieces) <= _SHOWN:
        first, size = int(devices[left[0]]), len(open_)
        inside = _reached(first, src, dst, size) & _reached(first, dst, src, size)
        pieces.append([endpoints[rank] for rank in left[inside[devices[left]]].tolist()])
        left = left[~inside[devices[left]]]
    if len(pieces) > 1:
        raise PlanError(f"topology {paths.topology.name!r} falls into {_in_words(pieces, both_ways)}")


def _reached(start: int, src: Ints, dst: Ints, size: int) -> NDArray[np.bool_]:
    """Bool [devices]: whether links lead to each device from the start."""
    reached = np.zeros(size, dtype=bool)
    reached[start] = True
    frontier = reached
    while frontier.any():
        after = np.zeros(size, dtype=bool)
        after[dst[frontier[src]]] = True
        frontier = after & ~reached
        reached |= frontier
    return reached


def _in_words(pieces: Sequence[Sequence[str]], both_ways: bool) -> str:
    listed = []
    for piece in pieces[:_SHOWN]:
        names = ranges(piece)
        listed.append(names if len(names) <= _LONG else f"{len(piece)} endpoints ({piece[0]}, {piece[1]}, ...)")
    few = len(pieces) <= _SHOWN
    count = len(pieces) if few else f"more than {_SHOWN}"
    return (
        f"{count} pieces: {'; '.join(listed)}{'' if few else '; ...'}; name the ranks of one piece with --ranks, or "
        f"leave links between them{' that lead both ways' * both_ways}"
    )
