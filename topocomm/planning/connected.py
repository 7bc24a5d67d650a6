"""Whether a value can get from every endpoint to every other at all, over links and endpoints that relay."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from topocomm.errors import PlanError
from topocomm.planning.collectives import IN_PARTS, Collective
from topocomm.planning.paths import PathFinder
from topocomm.planning.routes import Ints
from topocomm.topology.draw.names import ranges

_SHOWN = 3
"""Parts that a message lists, and runs of endpoints of each."""


def refuse_disconnected(paths: PathFinder, collective: Collective, endpoints: Sequence[str]) -> None:
    """Check that links join the ranks' endpoints, both ways where every rank needs something of every other.

    Raises:
        PlanError: The machine falls in parts; names some endpoints of each, and says how many there are.
    """
    src, dst = paths.link_ends
    both_ways = collective.name == "allreduce" and not collective.shards
    both_ways |= collective.name in IN_PARTS and (all(collective.parts) or not any(collective.parts))
    if not both_ways:
        src, dst = np.concatenate([src, dst]), np.concatenate([dst, src])
    devices = np.array([paths.classes.index[end] for end in endpoints], dtype=np.int64)
    parts = []
    left = np.unique(devices, return_index=True)[1]
    left.sort()
    while len(left):
        first = int(devices[left[0]])
        size = len(paths.classes.ids)
        inside = _reached(first, src, dst, size) & _reached(first, dst, src, size)
        parts.append([endpoints[rank] for rank in left[inside[devices[left]]].tolist()])
        left = left[~inside[devices[left]]]
        if len(parts) == 1 and not len(left):
            return
        if len(parts) > _SHOWN:
            break
    raise PlanError(f"topology {paths.topology.name!r}: {_in_words(parts, len(left), both_ways)}")


def _reached(start: int, src: Ints, dst: Ints, size: int) -> NDArray[np.bool_]:
    """Bool [devices]: whether links lead there from the device at the start."""
    found = np.zeros(size, dtype=bool)
    found[start] = True
    frontier = found
    while frontier.any():
        after = np.zeros(size, dtype=bool)
        after[dst[frontier[src]]] = True
        frontier = after & ~found
        found |= frontier
    return found


def _in_words(parts: Sequence[Sequence[str]], left: int, both_ways: bool) -> str:
    """What does not hang together, and the remedy."""
    listed = []
    for part in parts[:_SHOWN]:
        runs = ranges(part).split(", ")
        names = ", ".join(runs[:_SHOWN]) + (", ..." if len(runs) > _SHOWN else "")
        listed.append(f"{len(part)} endpoint{'s' * (len(part) != 1)} ({names})")
    others = left + sum(map(len, parts[_SHOWN:]))
    if others:
        listed.append(f"{others} more")
    joined = "lead both ways" if both_ways else "lead"
    return (
        f"no links {joined} between {', '.join(listed[:-1])} and {listed[-1]}; plan for ranks of one part (--ranks), "
        "or add the links that are missing"
    )
