"""Which plans along trees packed into hosts fit a request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Protocol

from topocomm.planning.collectives import IN_PARTS
from topocomm.planning.cost.pipeline_head import MOST_MESSAGES
from topocomm.planning.forests.chain_flow import period_of
from topocomm.planning.forests.port_forest import has_unlike_links
from topocomm.planning.hierarchical.long_values import is_long, on_gpus, slice_bytes
from topocomm.planning.host_forests.host_allreduce import HostAllreduce, host_allreduce
from topocomm.planning.host_forests.host_packing import HostForest, HostLoads, equal_trees, host_forest
from topocomm.planning.host_forests.parts_hosts import HostParts
from topocomm.planning.host_forests.parts_packing import PartsPacking
from topocomm.planning.host_forests.rooted_hosts import RootedHosts
from topocomm.planning.host_forests.rooted_packing import RootedPacking
from topocomm.planning.rank_patterns import RankPatterns
from topocomm.planning.request import Builds, Request
from topocomm.planning.routing.earliest_edges import pairs_differ
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.schedule.schedule import Schedule, split_rows
from topocomm.planning.schedule.transforms import relabelled, sliced
from topocomm.planning.shared_results import SharedResults

MOST_MEMBERS, MOST_RANKS = 16, 128
"""Most ranks of a host whose trees are packed, and of all."""
FOREST_SLICES, TRIES = (128, 64, 32, 16, 8, 4, 2, 1), 8
"""Numbers of slices, and of orders of messages, that are tried."""
MOST_TREES, LEAST_FOLLOWED = 8, 12
"""Most trees of the fewest that are tried; and about how many slices are followed at least."""
NEARLY, OFFERED, OFFERED_ROOTED = 1.03, 2, 5
"""Of the slices that take so many times the least, the fewest are taken; and how many numbers of trees are offered:
where messages run ahead of their turns they share links, which is followed when a plan is costed."""
PART_SHARES, PART_TRIES = (1, 2, 3), 10
"""Numbers of shares of a part, and of orders of their messages."""
MOST_MOVED = 1 << 20
"""Most pieces of all parts that are moved, all slices together: each is a line of the schedule."""
ROOTED_SHARES, ROOTED_TRIES = (16, 32, 48), 64
"""Numbers of shares of the value in reduces and broadcasts, and of orders of their messages."""
STEADY_SLICES = 6
"""Slices of a long pipeline that are followed beside those under way at once."""
LEAST_LATENCIES = 2
"""Least value, in the longest latency of a message, by its time in an allreduce: shorter ones have no slices."""
HOST_RADIX = 2
"""Children of a host in trees of hosts, at most."""
_Key = tuple[str, tuple[str, ...]]
_known_forests: SharedResults[_Key, tuple[HostLoads, HostForest | None]] = SharedResults(most=64)
_known: SharedResults[_Key, list[HostAllreduce]] = SharedResults(most=64)
_known_parts: SharedResults[tuple[str, tuple[str, ...], str], list[HostParts]] = SharedResults(most=64)
_known_rooted: SharedResults[tuple[str, tuple[str, ...], str, int], list[RootedHosts]] = SharedResults(most=64)
"""By machine and endpoints, and by collective and root: they depend on no payload."""


class _Clock(Protocol):
    """When messages leave: time and rounds from a slice to the next, and time until the first is through."""

    @property
    def period(self) -> float: ...
    @property
    def stagger(self) -> int: ...
    @property
    def takes(self) -> float: ...


class _Plan(Protocol):
    """Messages with turns: `HostAllreduce`, `RootedHosts`."""

    @property
    def trees(self) -> int: ...
    @property
    def chunks(self) -> int: ...
    @property
    def messages(self) -> int: ...
    @property
    def fastest(self) -> float: ...
    def clock(self, value_us: float) -> Any: ...
    def schedule(self, rows: int, clock: Any) -> Schedule: ...


def over_host_forests(request: Request, groups: RankPatterns) -> Builds:
    """Yield name and builder of a long value along trees packed into hosts that are alike."""
    ends, paths = tuple(request.endpoints[rank] for rank in groups.order), groups.paths
    if not _may(request):
        return
    members = period_of(ends, groups.host_starts, paths)
    if not 1 < members <= MOST_MEMBERS:
        return
    name = request.collective.name
    packed = _allreduces if name == "allreduce" else _parts if name in IN_PARTS else _rooted
    most = OFFERED_ROOTED if packed is _rooted else OFFERED
    options = [_soonest(request, groups, plan) for plan in packed(request, groups, ends, members)]
    found = [option for option in options if option is not None]
    for _, _, slices, plan, clock in sorted(found, key=lambda option: option[:2])[:most]:
        yield f"host-forest-{plan.trees}.{slices}", partial(_schedule, request, groups, plan, clock, slices)


def _allreduces(request: Request, groups: RankPatterns, ends: tuple[str, ...], members: int) -> list[HostAllreduce]:
    paths = groups.paths
    loads, forest = _known_forests.get((paths.topology.digest, ends), lambda: _forest_of(ends, paths, members))
    if forest is None or request.payload_bytes < LEAST_LATENCIES * loads.latency_us.max() * forest.gb_per_s * 1e3:
        return []
    return _known.get((paths.topology.digest, ends), lambda: _packed(loads, forest))


def _rooted(request: Request, groups: RankPatterns, ends: tuple[str, ...], members: int) -> list[RootedHosts]:
    """Of reduces and broadcasts, where links of a host are unlike or GPUs share NICs: else trees of stars are as good.

    What a message costs a processor is in no model, and these are many.
    """
    name, root, paths = request.collective.name, groups.order.index(request.collective.root), groups.paths
    if members == len(ends):
        return []
    loads = HostLoads(ends, paths, members)
    unlike = has_unlike_links(paths, ends[:members])
    if not unlike and not (loads.gates_share and on_gpus(request, paths)):
        return []
    if request.payload_bytes < loads.latency_us.max() * loads.fastest * 1e3:  # by far fewer bytes than have slices
        return []
    key = paths.topology.digest, ends, name, root
    return _known_rooted.get(key, lambda: _rooted_of(loads, root, reduces=name == "reduce", unlike=unlike))


def _parts(request: Request, groups: RankPatterns, ends: tuple[str, ...], members: int) -> list[HostParts]:
    """Of allgathers and reduce_scatters, where members are unlike: else parts overlap as well (`overlapped_parts`)."""
    paths, name = groups.paths, request.collective.name
    alike = request.collective.parts == tuple(rows for _, rows in split_rows(request.layout.rows, len(ends)))
    if members == len(ends) or not groups.in_order or not alike:
        return []
    if not pairs_differ(ends[:members], paths):
        return []
    loads = HostLoads(ends, paths, members)
    if request.payload_bytes < loads.latency_us.max() * loads.fastest * 1e3:
        return []
    return _known_parts.get((paths.topology.digest, ends, name), lambda: _parts_of(loads, name))


def _parts_of(loads: HostLoads, name: str) -> list[HostParts]:
    reduces = name == "reduce_scatter"
    packing = PartsPacking(loads, reduces=reduces)
    plans = dict[tuple[float, int], HostParts]()
    for trees in packing.trees(PART_SHARES):
        plan = HostParts(loads, packing, trees, reduces=reduces, tries=PART_TRIES)
        plans.setdefault((plan.period, plan.messages), plan)  # more shares on the same trees are the same messages
    return list(plans.values())


_Option = tuple[float, int, int, _Plan, _Clock]
"""Time if every message has its turn, messages, slices."""


def _soonest(request: Request, groups: RankPatterns, plan: _Plan) -> _Option | None:
    """Return the slices of about the least time, the fewest of these; None where there are too many messages."""
    options = list[_Option]()
    for slices in _slice_counts(request, groups, plan):
        value_us = request.payload_bytes / slices / (plan.fastest * 1e3)
        clock = plan.clock(value_us)
        followed = min(slices, clock.takes / clock.period + STEADY_SLICES)
        if followed * plan.messages <= MOST_MESSAGES:
            us = (clock.takes + (slices - 1) * clock.period) * value_us
            options.append((us, plan.messages * slices, slices, plan, clock))
            if us > NEARLY * min(us for us, *_ in options):
                break
    least_us = min((us for us, *_ in options), default=0.0)
    return next((option for option in reversed(options) if option[0] <= NEARLY * least_us), None)


def _slice_counts(request: Request, groups: RankPatterns, plan: _Plan) -> Iterator[int]:
    """Yield numbers of slices that are long enough and not too many pieces, the most first."""
    for slices in FOREST_SLICES:
        pieces = plan.chunks * slices
        too_short = slices > 1 and request.payload_bytes / pieces < slice_bytes(request, groups)
        moved = pieces * (len(request.endpoints) - 1) if isinstance(plan, HostParts) else 0
        if not too_short and request.layout.rows >= pieces and moved <= MOST_MOVED:
            yield slices


def _may(request: Request) -> bool:
    """Whether turns help: one port sends by its NIC or inside its host. Rounds must cost nothing, as there are many."""
    by_turns = request.objective == "auto" and request.port_model == "loggp" and request.ports == 1
    free = not request.cores and not request.launch_us
    few = 2 < len(request.endpoints) <= MOST_RANKS and len(set(request.endpoints)) == len(request.endpoints)
    in_any_order = request.operator.commutative or request.collective.name == "broadcast"
    return by_turns and free and few and in_any_order and is_long(request)


def _forest_of(ends: Sequence[str], paths: PathFinder, members: int) -> tuple[HostLoads, HostForest | None]:
    """The trees of a host; None without routes, and where phases are as good: what is alike and shares nothing."""
    loads = HostLoads(ends, paths, members)
    is_worth = loads.gates_share or pairs_differ(ends[:members], paths)
    return loads, host_forest(loads) if is_worth else None


def _packed(loads: HostLoads, forest: HostForest) -> list[HostAllreduce]:
    """The messages of as many trees as a host has members, at most MOST_TREES, and of half as many more, and twice.

    Of many hosts, whose pieces would be too many messages to follow, as many as can be followed.
    """
    fewest = min(loads.members, MOST_TREES)
    a_tree = 2 * loads.hosts * (loads.members + loads.hosts - 2)
    most = max(1, MOST_MESSAGES // (a_tree * LEAST_FOLLOWED))
    counts = [fewest, fewest * 3 // 2, fewest * 2]
    if most < fewest:
        counts = sorted({max(1, fewest // 2), max(1, most - 1), most})
    elif fewest < most < counts[1]:
        counts[2] = most
    return [host_allreduce(loads, equal_trees(loads, forest, count), TRIES) for count in counts]


def _rooted_of(loads: HostLoads, root: int, *, reduces: bool, unlike: bool) -> list[RootedHosts]:
    """The messages of trees of as many shares as each of ROOTED_SHARES, in their turns."""
    packing = RootedPacking(loads, root % loads.members, reduces=reduces)
    made = [(packing, trees) for trees in packing.trees(ROOTED_SHARES)]
    if unlike:
        packing = RootedPacking(loads, root % loads.members, reduces=reduces or loads.symmetric, neighbours=False)
        made += [(packing, trees) for trees in packing.low_trees(min(loads.members, MOST_TREES))]
    plans = [
        RootedHosts(loads, packing, trees, root, radix=HOST_RADIX, reduces=reduces).in_turns(ROOTED_TRIES)
        for packing, trees in made
    ]
    return [*(plan.as_late() for plan in plans), *plans[len(ROOTED_SHARES) :]]


def _schedule(request: Request, groups: RankPatterns, plan: _Plan, clock: _Clock, slices: int) -> Schedule:
    made = plan.schedule(request.layout.rows, clock)
    made = made if groups.in_order else relabelled(made, groups.order)
    return sliced(made, slices, clock.stagger)
