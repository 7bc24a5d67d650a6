"""In which order values travel around or along a group of ranks that had better not all send to each other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.routing.routes import Ints

MOST_STEPS = 20_000
"""Steps of the search for a ring over the fastest links; then slower ones are taken."""
MOST_PATH_MEMBERS = 8
"""Members up to which the fastest path is found, in count^2 2^count steps."""
SLOWER = 1.05
"""By how much longer the busiest link may take where all send to each other, which needs fewer rounds."""


def member_ring(endpoints: Sequence[str], paths: PathFinder) -> tuple[int, ...] | None:
    """Return the members of a group in the order of a ring, by index; None where they had better send to all at once.

    That is where the busiest link takes no longer for the messages of all pairs than for a ring's. The ring is the
    first in index order whose slowest route is as fast as that of any ring that the search finds.
    """
    count = len(endpoints)
    a, b = (x.ravel() for x in np.nonzero(~np.eye(count, dtype=bool)))
    rates = np.zeros((count, count))
    rates[a, b] = paths.routes(endpoints, a, b).gb_per_s
    ring = next((ring for rate in np.unique(rates[a, b])[::-1] if (ring := _cycle(rates >= rate))), range(count))
    at = np.array(ring)
    around_us = (count - 1) * _busiest(endpoints, paths, at, np.roll(at, -1))
    return None if _busiest(endpoints, paths, a, b) <= SLOWER * around_us else tuple(ring)


def member_path(endpoints: Sequence[str], paths: PathFinder, first: int) -> tuple[int, ...] | None:
    """Return the members of a group in the order of the fastest path that begins at one of them, by index.

    It is that of the least time if each link of the path carries one unit after the other (Held, Karp 1962). None where
    there are too many members, all pairs are as good, or some have no route.
    """
    count = len(endpoints)
    if not 1 < count <= MOST_PATH_MEMBERS:
        return None
    a, b = (x.ravel() for x in np.nonzero(~np.eye(count, dtype=bool)))
    rates = paths.routes(endpoints, a, b).gb_per_s
    if rates.min() in (0.0, rates.max()):
        return None
    time = np.zeros((count, count))
    time[a, b] = 1 / rates
    best: dict[tuple[int, int], tuple[float, tuple[int, ...]]] = {(1 << first, first): (0.0, (first,))}
    """By members on the way, as bits, and the last of them."""
    for _ in range(count - 1):
        longer: dict[tuple[int, int], tuple[float, tuple[int, ...]]] = {}
        for (passed, last), (us, way) in best.items():
            for member in range(count):
                if not passed >> member & 1:
                    key, found = (passed | 1 << member, member), (us + float(time[last, member]), (*way, member))
                    longer[key] = min(longer.get(key, found), found)
        best = longer
    return min(best.values())[1]


def _busiest(endpoints: Sequence[str], paths: PathFinder, src: Ints, dst: Ints) -> float:
    """The longest time of a link, if each of these messages has one unit."""
    links = paths.routes(endpoints, src, dst).links
    return float((np.bincount(links) / paths.link_gb_per_s[: links.max(initial=-1) + 1]).max(initial=0.0))


def _cycle(joined: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> list[int] | None:
    """The first cycle through all members over these links, in index order; None: none is there, or was found."""
    count, steps = len(joined), 0
    trail, others = [0], [iter(np.flatnonzero(joined[0]).tolist())]
    while trail and steps < MOST_STEPS:
        steps += 1
        if len(trail) == count and joined[trail[-1], 0]:
            return trail
        following = next((member for member in others[-1] if member not in trail), None)
        if following is None:
            trail.pop()
            others.pop()
        else:
            trail.append(following)
            others.append(iter(np.flatnonzero(joined[following]).tolist()))
    return None
