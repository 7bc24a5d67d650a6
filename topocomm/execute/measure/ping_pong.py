"""Ping-pong between all pairs of ranks: what messages take on this machine, beside what its topology says.

A pair sends a value there and back by broadcasts from either rank, prepared once, so that what is timed is what plans
are made of: this package's messages over this transport, and shared memory within a host. Ranks on GPUs send device
memory instead (`device_ping_pong.py`). One pair plays at a time; the other ranks wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import isnan, nan
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from topocomm.errors import TopologyError
from topocomm.execute.communicator import Communicator
from topocomm.execute.device.device_library import Device
from topocomm.execute.measure.device_ping_pong import STAGED, DevicePair, own_device, way_of
from topocomm.planning.cost.fit import SMALL_US, PairFigures, with_measured
from topocomm.planning.routing.paths import NoRouteError, PathFinder
from topocomm.planning.routing.routes import Edge
from topocomm.topology.inference import nccl_paths
from topocomm.topology.model import FigureSource, Link, RankPlace, Topology

LATENCY_BYTES = 8
RATE_BYTES = 8 << 20
"""More than the caches nearest to a core hold."""
WARMUP = 5
BLOCKS = 21
BLOCK_US = 300.0
MOST_TRIPS = 64
"""Trips there and back in one timed block."""
BUDGET_S = 0.2
"""For the long messages of one pair, on wires that take longer than this for all blocks."""
FEWEST_BLOCKS = 3
THROUGH_HOST = "values go from GPU to GPU through host memory, and what was measured is of that way, not of GPU links"


class Quartiles(NamedTuple):
    """Of the blocks: a quarter is below the first, half below the second, three quarters below the third; us."""

    p25: float
    p50: float
    p75: float


class Played(NamedTuple):
    """What two ranks measured; times are one way."""

    ranks: tuple[int, int]
    short_us: Quartiles
    long_us: Quartiles
    launch_us: Quartiles
    """Of a group of messages between devices, without waiting for an answer; else NaN."""

    @property
    def latency_us(self) -> float:
        """Of the short message, without the launch that it is started by."""
        launch_us = 0.0 if isnan(self.launch_us.p50) else self.launch_us.p50
        return max(self.short_us.p50 - launch_us, SMALL_US)

    @property
    def gb_per_s(self) -> float:
        """Bytes of the long message over what it takes longer than the short one."""
        return RATE_BYTES / max(self.long_us.p50 - self.short_us.p50, 1e-3) / 1e3


def measure(comm: Communicator) -> Topology:
    """The communicator's topology with latencies and bandwidths measured between its ranks; collective.

    Latency is half the trip there and back of 8 bytes, bandwidth is of 8 MiB, medians of 21 blocks. Pairs of devices
    get the best of their ranks' pairs; links get figures that agree with the pairs (`topocomm.planning.cost.fit`).
    `facts["ping_pong"]` has every pair of ranks with quartiles, beside the figures that the topology had.

    Ranks on GPUs measure as their values travel: by NCCL, or staged through host memory. Where messages start in
    groups, `launch_us` is what starting one takes, the median over the pairs; latencies are without it.

    Args:
        comm: Two ranks or more.

    Returns:
        The same on every rank, ready for `topocomm.init(topology)` and for plans.

    Raises:
        TopologyError: There is one rank only, or ranks sit on GPUs that torch does not see.
        DeadlineError, RankFailedError: As for any call.
    """
    _check(comm)
    device = own_device(comm)
    way = None if device is None else way_of(comm, device)
    played = _play_all(comm, None if device is None or way is None else (device, way))
    topology, places = comm.topology, comm.places
    launches = [one.launch_us.p50 for one in played if not isnan(one.launch_us.p50)]
    pairs = _of_devices(played, places)
    codes = [nccl_paths.code(topology, pair.a, pair.b, wording="nvidia-smi") for pair in pairs]
    found = with_measured(topology, pairs, codes)
    hosts = topology.by_id
    placed = tuple(RankPlace(rank, hosts[place].host, place) for rank, place in enumerate(places))
    return replace(
        found,
        source=f"{topology.source}, measured",
        ranks=topology.ranks if len(topology.ranks) == comm.size else placed,
        launch_us=round(median(launches), 3) if launches else topology.launch_us,
        warnings=(*found.warnings, *_shared_devices(places, pairs), *([THROUGH_HOST] if way == STAGED else [])),
        facts={**topology.facts, "ping_pong": _facts(comm, way, played, pairs)},
    )


def _of_devices(played: Sequence[Played], places: Sequence[str]) -> list[PairFigures]:
    """The best of each pair of devices."""
    best: dict[frozenset[str], PairFigures] = {}
    for one in played:
        a, b = (places[rank] for rank in one.ranks)
        if a != b:
            latency_us, gb_per_s = round(one.latency_us, 3), round(one.gb_per_s, 3)
            known = best.get(frozenset((a, b)), PairFigures(a, b, latency_us, gb_per_s))
            best[frozenset((a, b))] = known._replace(
                latency_us=min(known.latency_us, latency_us), gb_per_s=max(known.gb_per_s, gb_per_s)
            )
    return list(best.values())


def rounds(ranks: int) -> list[list[tuple[int, int]]]:
    """Every pair of ranks once, in rounds of disjoint pairs: the circle method of tournaments."""
    players = list(range(ranks + ranks % 2))
    made = []
    for _ in range(len(players) - 1):
        half = len(players) // 2
        meetings = zip(players[:half], reversed(players[half:]), strict=True)
        made.append([(min(pair), max(pair)) for pair in meetings if max(pair) < ranks])
        players = [players[0], players[-1], *players[1:-1]]
    return made


def _check(comm: Communicator) -> None:
    if comm.size < 2:
        raise TopologyError(
            "measuring needs two ranks or more: start it under a launcher, such as "
            "`mpirun -n 4 topocomm inspect --measure`"
        )


def _play_all(comm: Communicator, on: tuple[Device, str] | None) -> list[Played]:
    """What every pair measured, by rank; the same on every rank; collective."""
    order = rounds(comm.size)
    own = np.full((len(order), 9), nan)
    for number, pairs in enumerate(order):
        mine = next((place for place, pair in enumerate(pairs) if comm.rank in pair), None)
        two = comm.split(mine)
        for place in range(len(pairs)):
            comm.barrier()
            if two is not None and place == mine:
                figures = _play(two) if on is None else _play_on_devices(two, *on)
                own[number, : len(figures)] = figures
        if two is not None:
            two.close()
    told = comm.allgather(own[None])
    return sorted(
        Played(pair, *(Quartiles(*figures[at : at + 3]) for at in (0, 3, 6)))
        for number, pairs in enumerate(order)
        for pair in pairs
        for figures in [told[pair[0], number].tolist()]
    )


def _play(two: Communicator) -> list[float]:
    """Quartiles of one way of a short message, then of a long one; the figures of rank 0."""
    return [*_one_way_us(two, LATENCY_BYTES), *_one_way_us(two, RATE_BYTES)]


def _play_on_devices(two: Communicator, device: Device, way: str) -> list[float]:
    """The same in device memory, then of the launch of a group."""
    pair = DevicePair(two, device, way, RATE_BYTES)
    found = [*_quartiles(two, pair.trips(LATENCY_BYTES), 4), *_quartiles(two, pair.trips(RATE_BYTES), 1)]
    launches = pair.launches(LATENCY_BYTES)
    return found if launches is None else [*found, *_quartiles(two, launches, 4)]


def _one_way_us(two: Communicator, size_bytes: int) -> Quartiles:
    value = np.zeros(size_bytes, np.uint8)
    there, back = (two.prepare("broadcast", like=value, root=root) for root in (0, 1))

    def block_us(trips: int) -> float:
        began_ns = time.perf_counter_ns()
        for _ in range(trips):
            there(value, out=value)
            back(value, out=value)
        return (time.perf_counter_ns() - began_ns) / trips / 2e3

    found = _quartiles(two, block_us, 4 if size_bytes == LATENCY_BYTES else 1)
    there.free()
    back.free()
    return found


def _quartiles(two: Communicator, block_us: Callable[[int], float], first: int) -> Quartiles:
    """Of blocks of as many trips as the first few of them say; collective."""
    for _ in range(WARMUP):
        block_us(1)
    once_us = np.array([block_us(first)])
    trip_us = 2 * float(two.allgather_bytes(once_us.view(np.uint8))[0].view(np.float64)[0])
    trips = int(min(max(BLOCK_US / trip_us, 1), MOST_TRIPS))
    blocks = int(min(max(BUDGET_S * 1e6 / (trips * trip_us), FEWEST_BLOCKS), BLOCKS))
    return Quartiles(*np.percentile([block_us(trips) for _ in range(blocks)], [25, 50, 75]).tolist())


def _shared_devices(places: Sequence[str], pairs: Sequence[PairFigures]) -> list[str]:
    shared = sorted({place for place in places if places.count(place) > 1})
    lines = []
    if shared:
        lines.append(
            f"{len(places)} ranks on {len(set(places))} devices (several on {', '.join(shared[:8])}): what waits for "
            "its turn on a core counts as latency; measure with one rank a device"
        )
    if not pairs:
        lines.append(f"all ranks share {places[0]}: no link lies between them, nothing was measured")
    return lines


def _facts(
    comm: Communicator, way: str | None, played: Sequence[Played], pairs: Sequence[PairFigures]
) -> dict[str, Any]:
    finder = PathFinder(comm.topology)
    sources: dict[Edge, list[Link]] = {}
    for link in comm.topology.links:
        sources.setdefault(link[:2], []).append(link)
    return {
        "transport": comm.session.transport.name if way is None else f"{way} between devices",
        "ranks": comm.size,
        "latency_bytes": LATENCY_BYTES,
        "bandwidth_bytes": RATE_BYTES,
        "pairs": [{**pair._asdict(), **_nominal(finder, sources, pair)} for pair in pairs],
        "rank_pairs": [
            {
                "ranks": list(one.ranks),
                "latency_us": [round(figure, 3) for figure in one.short_us],
                "long_us": [round(figure, 3) for figure in one.long_us],
                **({} if isnan(one.launch_us.p50) else {"launch_us": [round(figure, 3) for figure in one.launch_us]}),
                "gb_per_s": round(one.gb_per_s, 3),
            }
            for one in played
        ],
    }


def _nominal(finder: PathFinder, given: Mapping[Edge, Sequence[Link]], pair: PairFigures) -> dict[str, Any]:
    """What the topology said of the pair's route before, and the least certain source of it."""
    try:
        route = finder.cheapest(pair.a, pair.b)
    except NoRouteError:
        return {"nominal_latency_us": None, "nominal_gb_per_s": None}
    links = [link for edge in route.edges for link in given[edge]]
    return {
        "nominal_latency_us": route.latency_us,
        "nominal_latency_us_source": _least([link.latency_us_source for link in links]),
        "nominal_gb_per_s": route.gb_per_s,
        "nominal_gb_per_s_source": _least([link.gb_per_s_source for link in links]),
    }


def _least(sources: Sequence[FigureSource | None]) -> FigureSource:
    """The least certain; what no source said was assumed by the planner."""
    for one in ("assumed", "table", "read"):
        if one in sources or (one == "assumed" and None in sources):
            return one
    return "measured"
