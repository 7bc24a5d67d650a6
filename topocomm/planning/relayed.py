"""Plans for machines where no algorithm has routes for all its messages: ranks relay values.

Values travel along the cheapest paths over endpoints and forwarding devices: to one rank and from it to all, of a scan
from each rank to the next. This is slower than necessary, but works on every connected machine.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from operator import itemgetter

import numpy as np

from topocomm.planning.algorithms.canonical_allreduce import relayed_canonical
from topocomm.planning.algorithms.gossip_parts import carried
from topocomm.planning.algorithms.gossip_schedule import Gossip
from topocomm.planning.algorithms.multiport import reversed_gossip
from topocomm.planning.collectives import FROM_ROOT, IN_PAIRS, IN_PARTS, TO_ROOT, Collective
from topocomm.planning.rank_patterns import MOST_LISTED_RANKS, MOST_RING_RANKS
from topocomm.planning.request import Builds, Request
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.routing.route_search import nearest_first
from topocomm.planning.schedule.schedule import Schedule, part_chunks
from topocomm.planning.searched import built
from topocomm.topology.model import ENDPOINT_KINDS

Near = defaultdict[str, list[tuple[float, str]]]
"""(latency in us, device) of the links to, or from, each device."""


def relayed_builds(request: Request, paths: PathFinder) -> Builds:
    """Yield name and builder of the plan over relays."""
    collective = request.collective
    name, relays = collective.name, _Relays(request, paths)
    if collective.ranks > (MOST_RING_RANKS if name in (*IN_PARTS, "scan", "exscan") else MOST_LISTED_RANKS):
        return
    if collective.shards:
        hub = next(rank for rank, (low, high) in enumerate(pairwise(collective.shards)) if low < high)
        build = partial(relayed_canonical, collective.shards, request.layout.rows, hub)
        yield "relayed", partial(build, relays.gather(hub), relays.spread(hub))
        return
    if name in IN_PAIRS:
        yield "relayed", partial(relays.pairs, collective)
        return
    if name in ("scan", "exscan"):
        gossip = relays.chain()
    elif name in TO_ROOT:
        gossip = relays.gather(collective.root)
    elif name in FROM_ROOT:
        gossip = relays.spread(collective.root)
    else:  # a rank with a part is connected to all ranks with parts
        hub = next((rank for rank, part in enumerate(collective.parts) if part), 0)
        gossip = [*relays.gather(hub), *relays.spread(hub)]
    yield "relayed", partial(built, reversed_gossip(gossip) if name == "reduce_scatter" else gossip, request)


class _Relays:
    """Cheapest paths between ranks over endpoints; the first of several ranks on an endpoint relays."""

    def __init__(self, request: Request, paths: PathFinder) -> None:
        devices = paths.topology.devices
        self.ends = request.endpoints
        self.on: dict[str, list[int]] = defaultdict(list)
        for rank, end in enumerate(self.ends):
            self.on[end].append(rank)
        self.closed = {device.id for device in devices if device.kind in ENDPOINT_KINDS and device.id not in self.on}
        self.number = {device.id: number for number, device in enumerate(devices)}
        self.ahead: Near = defaultdict(list)
        self.behind: Near = defaultdict(list)
        for (a, b), figures in paths.links.items():
            self.ahead[a].append((figures.latency_us, b))
            self.behind[b].append((figures.latency_us, a))

    def spread(self, root: int) -> Gossip:
        """Return the gossip from the root to all ranks that it reaches."""
        return self._levels(root, self.ahead)

    def gather(self, root: int) -> Gossip:
        """Return the gossip to the root from all ranks that reach it."""
        return reversed_gossip(self._levels(root, self.behind))

    def chain(self) -> Gossip:
        """Return the gossip from each rank to the next."""
        rounds = []
        for rank in range(len(self.ends) - 1):
            source, path = self._sources(rank, self.ahead), [rank + 1]
            while path[-1] in source:
                path.append(source[path[-1]])
            rounds += [[message] for message in pairwise(reversed(path))]
        return rounds

    def pairs(self, collective: Collective) -> Schedule:
        """Return the alltoall in which every part goes its own way from rank to rank."""
        chunks, parts = part_chunks(collective.parts)
        givers, takers = zip(*(divmod(part, collective.ranks) for part in parts), strict=True)
        sources = {giver: self._sources(giver, self.ahead) for giver in sorted(set(givers))}
        moves: list[tuple[int, int, int, int]] = []
        for chunk, (giver, taker) in enumerate(zip(givers, takers, strict=True)):
            path = [taker]
            while path[-1] != giver:
                path.append(sources[giver][path[-1]])
            moves += [(hop, *ends, chunk) for hop, ends in enumerate(pairwise(reversed(path)))]
        round_, src, dst, chunk_of = np.array(moves, dtype=np.int64).reshape(-1, 4).T
        return carried(collective.ranks, chunks, np.stack([round_, src, dst, chunk_of]), givers=givers, takers=takers)

    def _levels(self, root: int, near: Near) -> Gossip:
        """A round for every distance from the root, in endpoints."""
        depth, rounds = {root: 0}, list[list[tuple[int, int]]]()
        for rank, source in self._sources(root, near).items():
            depth[rank] = depth[source] + 1
            rounds += [[] for _ in range(depth[rank] - len(rounds))]
            rounds[depth[rank] - 1].append((source, rank))
        return rounds

    def _sources(self, root: int, near: Near) -> dict[int, int]:
        """The predecessor of each rank on its cheapest path from the root, nearest first (Dijkstra).

        Of paths of equal latency the one over fewer endpoints is taken.
        """
        start = self.ends[root]
        sources: dict[int, int] = {}

        def onward(label: tuple[float, int, int, str, int]) -> Iterator[tuple[float, int, int, str, int]]:
            at_us, relays, _, device, source = label
            if device in self.on:
                first = root if device == start else self.on[device][0]
                sources.update({first: source} if first != root else {})
                sources.update((rank, first) for rank in self.on[device] if rank != first)
                source, relays = first, relays + 1
            for us, after in near[device]:
                if after not in self.closed:
                    yield round(at_us + us, 9), relays, self.number[after], after, source

        nearest_first([(0.0, 0, self.number[start], start, root)], itemgetter(2), onward)
        return sources
