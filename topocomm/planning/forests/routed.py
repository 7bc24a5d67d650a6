"""Parts from rank to rank, each over several paths at once: for long payloads on machines with unlike pairs.

The busiest link decides, so this is a multicommodity flow of least congestion. Every part is cut in slices, which
are routed one after the other on the path that is cheapest where a link costs what it adds to the sum of
(load / rate)^K, then again with the others in place, K rising (after Plotkin, Shmoys, Tardos 1995). Ranks relay.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from heapq import heappop, heappush
from itertools import accumulate, pairwise

import numpy as np

from topocomm.planning.algorithms.gossip_parts import carried
from topocomm.planning.collectives import FROM_ROOT, IN_PAIRS, Collective
from topocomm.planning.forests.tree_schedule import whole_rows
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.schedule.schedule import NO_PATH, Schedule
from topocomm.topology.model import ENDPOINT_KINDS

SEARCHES = 256
"""Searches of a pass, each of the paths from one rank at one time's prices: as many slices as that gives a part."""
MANY_PARTS = 2048
"""Above it a part is one slice: so many even out over the paths, whole."""
SQUARINGS = (2, 3, 3, 4, 4, 5)
"""K = 2^n of every pass."""
MOST_RANKS, MOST_ROOTED_RANKS = 128, 64
"""Most ranks that are routed, and with one that all give to or get from."""
IDLE = 1e-9
"""Share of the busiest link's price that an idle one has, so that no path is longer than it need be."""
Path = tuple[int, ...]
"""Numbers of links."""


def routed(collective: Collective, paths: PathFinder, endpoints: Sequence[str]) -> Schedule | None:
    """Return the schedule of a collective whose parts go to one rank each; None where parts have no rows.

    Nor does it fit ranks that share an endpoint, too many, and those that others do not reach.
    """
    parts, ranks = collective.parts, collective.ranks
    most = MOST_RANKS if collective.name in IN_PAIRS else MOST_ROOTED_RANKS
    if not 1 < ranks <= most or len(set(endpoints)) < ranks or not any(parts):
        return None
    numbers = np.arange(len(parts))
    givers, takers = collective.givers(numbers).tolist(), collective.takers(numbers).tolist()
    if collective.name == "gather":
        takers = [collective.root] * ranks
    if collective.name == "scatter":
        givers = [collective.root] * ranks
    wanted = {part: (givers[part], takers[part]) for part in numbers.tolist() if parts[part]}
    flow = _Flow(paths, endpoints, {part: pair for part, pair in wanted.items() if pair[0] != pair[1]}, parts)
    chosen = flow.route()
    if chosen is None:
        return None
    pieces: list[tuple[int, int, Path]] = []
    for part in wanted:
        counts = Counter(chosen.get(part, [()]))
        rows = whole_rows(parts[part], list(counts.values()))
        pieces += [(part, n, path) for n, path in zip(rows, counts, strict=True) if n]
    return _written(collective, flow, pieces, givers, takers)


class _Flow:
    """The links of a machine, what flows over them, and the paths of all slices."""

    def __init__(
        self,
        paths: PathFinder,
        endpoints: Sequence[str],
        wanted: dict[int, tuple[int, int]],
        parts: Sequence[int],
    ) -> None:
        self.paths, self.rank_of, self.wanted = paths, {end: rank for rank, end in enumerate(endpoints)}, wanted
        self.endpoints, self.edges = endpoints, paths.edges
        self.rates = [max(figures.gb_per_s, 1e-9) for figures in paths.links.values()]
        self.load = [0.0] * len(self.edges)
        ends = [device.id for device in paths.topology.devices if device.kind in ENDPOINT_KINDS]
        closed = set(ends) - self.rank_of.keys()
        self.after: dict[str, list[tuple[int, str]]] = defaultdict(list)
        for edge, (a, b) in enumerate(self.edges):
            if not {a, b} & closed:
                self.after[a].append((edge, b))
        alone = len({giver for giver, _ in wanted.values()}) == 1
        self.together: dict[int, list[int]] = defaultdict(list)
        """Parts that are routed at the same prices."""
        for part, (giver, _) in wanted.items():
            self.together[part if alone else giver].append(part)
        self.slices = 1 if len(wanted) > MANY_PARTS else max(SEARCHES // max(len(self.together), 1), 1)
        self.size = {part: parts[part] / self.slices for part in wanted}

    def route(self) -> dict[int, list[Path]] | None:
        """Return the paths of every part's slices, of the best pass; None where some rank is out of reach."""
        slices: dict[int, list[Path]] = {part: [()] * self.slices for part in self.wanted}
        best, least = None, float("inf")
        for squarings in SQUARINGS:
            for turn in range(self.slices):
                for own in self.together.values():
                    for part in own:
                        self._add(slices[part][turn], -self.size[part])
                    found = self._cheapest(self.wanted[own[0]][0], squarings)
                    for part in own:
                        if (path := found.get(self.endpoints[self.wanted[part][1]])) is None:
                            return None
                        slices[part][turn] = path
                        self._add(path, self.size[part])
            busiest = max(load / rate for load, rate in zip(self.load, self.rates, strict=True))
            if busiest < least * (1 - 1e-9):
                best, least = {part: list(own) for part, own in slices.items()}, busiest
            if busiest <= self.least() * (1 + 1e-9):
                break
        return best

    def least(self) -> float:
        """Return the time that some endpoint needs at least, over all its links."""
        rows: Counter[tuple[int, str]] = Counter()
        rates: Counter[tuple[int, str]] = Counter()
        for part, pair in self.wanted.items():
            rows.update({(side, self.endpoints[rank]): self.size[part] * self.slices for side, rank in enumerate(pair)})
        for ends, rate in zip(self.edges, self.rates, strict=True):
            rates.update(dict.fromkeys(enumerate(ends), rate))
        return max((sent / rates[end] for end, sent in rows.items() if rates[end]), default=0.0)

    def _add(self, path: Path, size: float) -> None:
        for edge in path:
            self.load[edge] += size

    def _cheapest(self, giver: int, squarings: int) -> dict[str, Path]:
        """Return the cheapest path to every device, at the prices of the loads."""
        used = [max(load, 0.0) / rate for load, rate in zip(self.load, self.rates, strict=True)]
        top, prices = max(used) or 1.0, []
        for share, rate in zip(used, self.rates, strict=True):
            price = share / top
            for _ in range(squarings):
                price *= price
            prices.append((price + IDLE) / rate)
        reached: dict[str, Path] = {}
        heap: list[tuple[float, int, str, Path]] = [(0.0, 0, self.endpoints[giver], ())]
        while heap:
            cost, hops, device, path = heappop(heap)
            if device not in reached:
                reached[device] = path
                for edge, following in self.after[device]:
                    if following not in reached:
                        heappush(heap, (cost + prices[edge], hops + 1, following, (*path, edge)))
        return reached


def _written(
    collective: Collective,
    flow: _Flow,
    pieces: Sequence[tuple[int, int, Path]],
    givers: Sequence[int],
    takers: Sequence[int],
) -> Schedule:
    """Return the schedule of pieces (part, rows, path), which follow each other in the payload."""
    rows = [n for _, n, _ in pieces]
    chunks = tuple(zip(accumulate(rows, initial=0), rows, strict=False))
    named: dict[tuple[str, ...], int] = {}
    moves = []
    for chunk, (_, _, path) in enumerate(pieces):
        devices = [flow.edges[edge][0] for edge in path] + [flow.edges[edge][1] for edge in path[-1:]]
        stops = [place for place, device in enumerate(devices) if device in flow.rank_of]
        for hop, (low, high) in enumerate(pairwise(stops)):
            way = tuple(devices[low : high + 1])
            is_cheapest = flow.paths.cheapest(way[0], way[-1]).devices == way
            number = NO_PATH if is_cheapest else named.setdefault(way, len(named))
            src, dst = flow.rank_of[way[0]], flow.rank_of[way[-1]]
            moves.append((hop * collective.ranks + (dst - src) % collective.ranks, src, dst, chunk, number))
    table = np.array(sorted(moves), dtype=np.int64).reshape(-1, 5)
    columns = np.stack([np.unique(table[:, 0], return_inverse=True)[1], *table[:, 1:4].T])
    schedule = carried(
        collective.ranks,
        chunks,
        columns,
        givers=[givers[part] for part, _, _ in pieces],
        takers=[takers[part] for part, _, _ in pieces],
        root=collective.root if collective.name in FROM_ROOT else None,
    )
    schedule.transfers[:, 6] = table[:, 4]
    return replace(schedule, paths=tuple(named))
