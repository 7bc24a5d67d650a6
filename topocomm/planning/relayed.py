"""Plans for machines where no algorithm finds a route for all its messages: ranks on the way pass values on.

Values go along the cheapest ways from endpoint to endpoint, over whatever forwards between them: to a rank and from it
to all, of a scan from each rank to the next. That takes more time than it must, but it works wherever ways lead.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from operator import itemgetter

from topocomm.planning.algorithms.canonical_allreduce import relayed_canonical
from topocomm.planning.algorithms.gossip_schedule import Gossip
from topocomm.planning.algorithms.multiport import reversed_gossip
from topocomm.planning.candidates import MOST_LISTED_RANKS, MOST_RING_RANKS
from topocomm.planning.collectives import IN_PARTS
from topocomm.planning.request import Builds, Request
from topocomm.planning.routing.nearest_first import nearest_first
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.searched import built
from topocomm.topology.model import ENDPOINT_KINDS

Near = defaultdict[str, list[tuple[float, str]]]
"""(latency in us, device) of all that a device has links to, or from."""


def relayed_builds(request: Request, paths: PathFinder) -> Builds:
    """Name and builder of the plan over relays."""
    collective = request.collective
    name, ways = collective.name, _Ways(request, paths)
    if collective.ranks > (MOST_RING_RANKS if name in (*IN_PARTS, "scan", "exscan") else MOST_LISTED_RANKS):
        return
    if collective.shards:
        hub = next(rank for rank, (low, high) in enumerate(pairwise(collective.shards)) if low < high)
        build = partial(relayed_canonical, collective.shards, request.layout.rows, hub)
        yield "relayed", partial(build, ways.gathering(hub), ways.spreading(hub))
        return
    if name in ("scan", "exscan"):
        told = ways.chain()
    elif name == "reduce":
        told = ways.gathering(collective.root)
    elif name == "broadcast":
        told = ways.spreading(collective.root)
    else:  # one that gives or gets is in touch with all who do
        told = ways.over(next((rank for rank, part in enumerate(collective.parts) if part), 0))
    yield "relayed", partial(built, reversed_gossip(told) if name == "reduce_scatter" else told, request)


class _Ways:
    """The cheapest ways between ranks, from endpoint to endpoint; of several ranks on one the first passes on."""

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

    def spreading(self, root: int) -> Gossip:
        """The root tells all to whom a way leads."""
        return self._levels(root, self.ahead)

    def gathering(self, root: int) -> Gossip:
        """All from whom a way leads there tell the root."""
        return reversed_gossip(self._levels(root, self.behind))

    def over(self, root: int) -> Gossip:
        """The one, then the other."""
        return [*self.gathering(root), *self.spreading(root)]

    def chain(self) -> Gossip:
        """Each rank tells the next."""
        rounds = []
        for rank in range(len(self.ends) - 1):
            source, way = self._sources(rank, self.ahead), [rank + 1]
            while way[-1] in source:
                way.append(source[way[-1]])
            rounds += [[message] for message in pairwise(reversed(way))]
        return rounds

    def _levels(self, root: int, near: Near) -> Gossip:
        """A round for every endpoint on the way from the root."""
        depth, rounds = {root: 0}, list[list[tuple[int, int]]]()
        for rank, source in self._sources(root, near).items():
            depth[rank] = depth[source] + 1
            rounds += [[] for _ in range(depth[rank] - len(rounds))]
            rounds[depth[rank] - 1].append((source, rank))
        return rounds

    def _sources(self, root: int, near: Near) -> dict[int, int]:
        """The rank before each rank on its cheapest way from the root, nearest first (Dijkstra).

        Of ways of equal latency the one over fewer endpoints is taken.
        """
        start = self.ends[root]
        found: dict[int, int] = {}

        def onward(label: tuple[float, int, int, str, int]) -> Iterator[tuple[float, int, int, str, int]]:
            at_us, relays, _, device, source = label
            if device in self.on:
                first = root if device == start else self.on[device][0]
                found.update({first: source} if first != root else {})
                found.update((rank, first) for rank in self.on[device] if rank != first)
                source, relays = first, relays + 1
            for us, after in near[device]:
                if after not in self.closed:
                    yield round(at_us + us, 9), relays, self.number[after], after, source

        nearest_first([(0.0, 0, self.number[start], start, root)], itemgetter(2), onward)
        return found
