"""Ping-pong between all pairs of ranks: what messages take on this machine, beside what its topology says.

A pair sends a value there and back by broadcasts from either rank, prepared once, so that what is timed is what plans
are made of: this package's messages over this transport, and shared memory within a host. Ranks on GPUs send device
memory instead (`device_ping_pong.py`). One pair plays at a time; the other ranks wait.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import isnan, nan
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from topocomm.errors import TopologyError
from topocomm.execute.communicator import Communicator
from topocomm.execute.device.device_library import Device
from topocomm.execute.measure.device_ping_pong import STAGED, DevicePair, broadcasts, device_path_name, own_device
from topocomm.planning.cost.fit import SMALL_US, PairFigures, with_measured
from topocomm.planning.routing.paths import NoRouteError, PathFinder
from topocomm.planning.routing.routes import Edge
from topocomm.topology.inference import nccl_paths
from topocomm.topology.model import FigureSource, Link, RankPlace, Topology

LATENCY_BYTES = 8
"""Bytes of the message that latency is measured by."""
RATE_BYTES = 8 << 20
"""Bytes of the message that bandwidth is measured by: more than the caches nearest to a core hold."""
TRIAL_BYTES = 256 << 10
"""Bytes of the message that says whether the long one is sent whole."""
MOST_TRIP_US = 25e3
"""One way of a long message; where 8 MiB take longer as many bytes are sent as take this, and the time is scaled."""
WARMUP = 5
"""Round trips before anything is timed."""
BLOCKS = 21
"""Timed blocks of a message."""
BLOCK_US = 300.0
"""Target duration of a block."""
MOST_TRIPS = 64
"""Most round trips of a block."""
BUDGET_S = 0.2
"""Time for the long messages of one pair where all blocks would take longer."""
FEWEST_BLOCKS = 3
"""Blocks that are timed in any case."""
THROUGH_HOST = "values go from GPU to GPU through host memory, and what was measured is of that way, not of GPU links"
"""Warning where device memory was measured through host memory."""


class Quartiles(NamedTuple):
    """Quartiles over the blocks, in us."""

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
        """Latency of the short message, without the launch that it is started by."""
        launch_us = 0.0 if isnan(self.launch_us.p50) else self.launch_us.p50
        return max(self.short_us.p50 - launch_us, SMALL_US)

    @property
    def gb_per_s(self) -> float:
        """Bandwidth: bytes of the long message over what it takes longer than the short one."""
        return RATE_BYTES / max(self.long_us.p50 - self.short_us.p50, 1e-3) / 1e3


def measure(comm: Communicator) -> Topology:
    """The communicator's topology with latencies and bandwidths measured between its ranks; collective.

    Latency is half the trip there and back of 8 bytes, bandwidth is of 8 MiB, of less on slow links, medians of up to
    21 blocks. Pairs of devices
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
    if comm.size < 2:
        raise TopologyError(
            "measuring needs two ranks or more: start it under a launcher, such as "
            "`mpirun -n 4 topocomm inspect --measure`"
        )
    device = own_device(comm)
    path = None if device is None else device_path_name(comm, device)
    measurements = _play_all(comm, None if device is None or path is None else (device, path))
    topology, places = comm.topology, comm.places
    launches = [pair.launch_us.p50 for pair in measurements if not isnan(pair.launch_us.p50)]
    pairs = _of_devices(measurements, places)
    codes = [nccl_paths.code(topology, pair.a, pair.b, wording="nvidia-smi") for pair in pairs]
    measured = with_measured(topology, pairs, codes)
    hosts = topology.by_id
    placed = tuple(RankPlace(rank, hosts[place].host, place) for rank, place in enumerate(places))
    return replace(
        measured,
        source=f"{topology.source}, measured",
        ranks=topology.ranks if len(topology.ranks) == comm.size else placed,
        launch_us=round(median(launches), 3) if launches else topology.launch_us,
        warnings=(*measured.warnings, *_shared_devices(places, pairs), *([THROUGH_HOST] if path == STAGED else [])),
        facts={**topology.facts, "ping_pong": _facts(comm, path, measurements, pairs)},
    )


def significant(gb_per_s: float) -> float:
    """Return a rate with three decimals, or four digits where it is below 1 GB/s."""
    return round(gb_per_s, 3) if gb_per_s >= 1 else float(f"{gb_per_s:.4g}")


def _of_devices(measurements: Sequence[Played], places: Sequence[str]) -> list[PairFigures]:
    best: dict[frozenset[str], PairFigures] = {}
    for measured in measurements:
        a, b = (places[rank] for rank in measured.ranks)
        if a != b:
            latency_us, gb_per_s = round(measured.latency_us, 3), significant(measured.gb_per_s)
            known = best.get(frozenset((a, b)), PairFigures(a, b, latency_us, gb_per_s))
            best[frozenset((a, b))] = known._replace(
                latency_us=min(known.latency_us, latency_us), gb_per_s=max(known.gb_per_s, gb_per_s)
            )
    return list(best.values())


def rounds(ranks: int) -> list[list[tuple[int, int]]]:
    """Return every pair of ranks once, in rounds of disjoint pairs: the circle method of tournaments."""
    players = list(range(ranks + ranks % 2))
    schedule = []
    for _ in range(len(players) - 1):
        half = len(players) // 2
        meetings = zip(players[:half], reversed(players[half:]), strict=True)
        schedule.append([(min(pair), max(pair)) for pair in meetings if max(pair) < ranks])
        players = [players[0], players[-1], *players[1:-1]]
    return schedule


def _play_all(comm: Communicator, on: tuple[Device, str] | None) -> list[Played]:
    """Return what every pair measured, by rank; the same on every rank. Collective."""
    order = rounds(comm.size)
    own = np.full((len(order), 9), nan)
    for number, pairs in enumerate(order):
        own_place = next((place for place, pair in enumerate(pairs) if comm.rank in pair), None)
        two = comm.split(own_place)
        for place in range(len(pairs)):
            comm.barrier()
            if two is not None and place == own_place:
                figures = _play(two, on)
                own[number, : len(figures)] = figures
        if two is not None:
            two.close()
    gathered = comm.allgather(own[None])
    return sorted(
        Played(pair, *(Quartiles(*figures[at : at + 3]) for at in (0, 3, 6)))
        for number, pairs in enumerate(order)
        for pair in pairs
        for figures in [gathered[pair[0], number].tolist()]
    )


def _play(two: Communicator, on: tuple[Device, str] | None) -> list[float]:
    """Return the quartiles of a short message, of a long one and, on devices, of a launch; the figures of rank 0."""
    pair = None if on is None else DevicePair(two, *on, RATE_BYTES)

    def trips(size_bytes: int) -> Callable[[int], float]:
        return broadcasts(two, np.zeros(size_bytes, np.uint8)) if pair is None else pair.trips(size_bytes)

    short = _quartiles(two, trips(LATENCY_BYTES), 4)
    long_bytes = RATE_BYTES if pair is not None else _affordable_bytes(two)
    long = _quartiles(two, trips(long_bytes), 1)
    scale = RATE_BYTES / long_bytes
    figures = [*short, *(short.p50 + scale * (us - short.p50) if scale > 1 else us for us in long)]
    launches = None if pair is None else pair.launches(LATENCY_BYTES)
    return figures if launches is None else [*figures, *_quartiles(two, launches, 4)]


def _affordable_bytes(two: Communicator) -> int:
    """Return the bytes of the long message, by what a shorter one takes; collective."""
    trial = broadcasts(two, np.zeros(TRIAL_BYTES, np.uint8))
    trial(1)
    expected_us = _of_rank_0(two, trial(1)) * RATE_BYTES / TRIAL_BYTES
    return RATE_BYTES if expected_us <= MOST_TRIP_US else max(TRIAL_BYTES, int(RATE_BYTES * MOST_TRIP_US / expected_us))


def _of_rank_0(two: Communicator, time_us: float) -> float:
    """Return rank 0's time on both ranks; collective."""
    return float(two.allgather_bytes(np.array([time_us]).view(np.uint8))[0].view(np.float64)[0])


def _quartiles(two: Communicator, block_us: Callable[[int], float], first: int) -> Quartiles:
    """Return the quartiles over blocks; the first few trips say how many a block has. Collective."""
    for _ in range(WARMUP):
        block_us(1)
    trip_us = 2 * _of_rank_0(two, block_us(first))
    trips = int(min(max(BLOCK_US / trip_us, 1), MOST_TRIPS))
    blocks = int(min(max(BUDGET_S * 1e6 / (trips * trip_us), FEWEST_BLOCKS), BLOCKS))
    return Quartiles(*np.percentile([block_us(trips) for _ in range(blocks)], [25, 50, 75]).tolist())


def _shared_devices(places: Sequence[str], pairs: Sequence[PairFigures]) -> list[str]:
    shared = sorted({place for place in places if places.count(place) > 1})
    warnings = []
    if shared:
        warnings.append(
            f"{len(places)} ranks on {len(set(places))} devices (several on {', '.join(shared[:8])}): what waits for "
            "its turn on a core counts as latency; measure with one rank a device"
        )
    if not pairs:
        warnings.append(f"all ranks share {places[0]}: no link lies between them, nothing was measured")
    return warnings


def _facts(
    comm: Communicator, path: str | None, played: Sequence[Played], pairs: Sequence[PairFigures]
) -> dict[str, Any]:
    finder = PathFinder(comm.topology)
    sources: dict[Edge, list[Link]] = {}
    for link in comm.topology.links:
        sources.setdefault(link[:2], []).append(link)
    return {
        "transport": comm.session.transport.name if path is None else f"{path} between devices",
        "ranks": comm.size,
        "latency_bytes": LATENCY_BYTES,
        "bandwidth_bytes": RATE_BYTES,
        "pairs": [{**pair._asdict(), **_nominal(finder, sources, pair)} for pair in pairs],
        "rank_pairs": [
            {
                "ranks": list(pair_measured.ranks),
                "latency_us": _rounded(pair_measured.short_us),
                "long_us": _rounded(pair_measured.long_us),
                **({} if isnan(pair_measured.launch_us.p50) else {"launch_us": _rounded(pair_measured.launch_us)}),
                "gb_per_s": significant(pair_measured.gb_per_s),
            }
            for pair_measured in played
        ],
    }


def _rounded(quartiles: Quartiles) -> list[float]:
    return [round(figure_us, 3) for figure_us in quartiles]


def _nominal(finder: PathFinder, links_of: Mapping[Edge, Sequence[Link]], pair: PairFigures) -> dict[str, Any]:
    """Return what the topology said of the pair's route before, and the least certain source of it."""
    try:
        route = finder.cheapest(pair.a, pair.b)
    except NoRouteError:
        return {"nominal_latency_us": None, "nominal_gb_per_s": None}
    links = [link for edge in route.edges for link in links_of[edge]]
    return {
        "nominal_latency_us": route.latency_us,
        "nominal_latency_us_source": _least([link.latency_us_source for link in links]),
        "nominal_gb_per_s": route.gb_per_s,
        "nominal_gb_per_s_source": _least([link.gb_per_s_source for link in links]),
    }


def _least(sources: Sequence[FigureSource | None]) -> FigureSource:
    """Return the least certain source; what no source said was assumed by the planner."""
    certainty: list[FigureSource] = ["assumed", "table", "read", "measured"]
    return min([source or "assumed" for source in sources], key=certainty.index, default="measured")
