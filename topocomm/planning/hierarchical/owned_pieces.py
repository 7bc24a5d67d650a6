"""Values over rails in pieces with one owner each: how many, and whether owners send to one root past its host."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache, cached_property

from topocomm.planning.algorithms.hosts.rail_owners import (
    owners_transfers,
    owning_order,
    rail_owners_allreduce,
    rail_owners_broadcast,
    rail_owners_reduce,
)
from topocomm.planning.algorithms.hosts.rails_parts import Inside, common_rails
from topocomm.planning.rank_patterns import RankPatterns
from topocomm.planning.request import Request
from topocomm.planning.routing.message_pace import pace_across, pace_of
from topocomm.planning.schedule.rooted import broadcast_of, reduce_of
from topocomm.planning.schedule.schedule import Schedule
from topocomm.planning.schedule.transforms import relabelled

NEARLY, NEARLY_STRAIGHT, SHORT_OF_LATENCY = 1.01, 1.1, 0.05
"""The fewest pieces are taken with which owners take so many times the least, or this part of the latency."""
FEW_TRANSFERS = 1 << 18
"""Transfers up to which more pieces are taken over all rails: two slices of them can be planned."""
ALONE = 2.0
"""How many times as long as over all rails the rail of the root may take where owners use it alone."""


class OwnedPieces:
    """A request's value in pieces whose owners hear from all other groups at once; groups have a common rail."""

    def __init__(self, request: Request, groups: RankPatterns) -> None:
        self.request, self.groups, self.bare = request, groups, groups.hierarchy.groups
        self.ends = [request.endpoints[rank] for rank in groups.order]
        self.rails = common_rails(self.bare)
        self.on_gpus = {groups.paths.topology.by_id[end].kind for end in self.ends} == {"gpu"}
        self.slowest_of = cache(self._slowest_of)

    def schedules(self, ways: Sequence[tuple[str, Inside]], most_transfers: int) -> Iterator[tuple[str, Schedule]]:
        """Yield name and schedule of each way inside groups; none where pieces with enough owners are too many.

        Raises:
            NoRouteError: Two groups have no route on a common rail.
        """
        pieces = self.pieces(most_transfers)
        rows = self.request.layout.rows
        family, make = f"rails-by-{self.bare.count}", self._by_rails
        if self.straight:
            family, make = "rails-straight", self._straight
        for label, inside in ways if pieces else ():
            yield family + label, make(rows, pieces, inside)

    def _by_rails(self, rows: int, pieces: int, inside: Inside) -> Schedule:
        collective = self.request.collective
        made = relabelled(rail_owners_allreduce(self.bare, rows, pieces, inside), self.groups.order)
        if collective.name == "allreduce":
            return made
        return (reduce_of if collective.name == "reduce" else broadcast_of)(made, collective.root)

    def _straight(self, rows: int, pieces: int, inside: Inside) -> Schedule:
        make = rail_owners_reduce if self.request.collective.name == "reduce" else rail_owners_broadcast
        root = self.groups.order.index(self.request.collective.root)
        return relabelled(make(self.bare, rows, pieces, inside, root), self.groups.order)

    def pieces(self, most_transfers: int) -> int:
        """Return the fewest pieces of a part with which what owners hear takes about as little as with any.

        More over all rails of GPUs, where the schedule stays short; 0 where one piece is too many.
        """
        bare, rails = self.bare, len(self.rails)

        def owner_us(pieces: int) -> float:
            owned = pieces * rails
            at_once = min(rails, -(-owned // bare.count))  # in one group
            return (bare.count - 1) * self.request.payload_bytes / owned * self.slowest_of(at_once)

        options = [n for n in range(1, bare.count + 1) if owners_transfers(bare, n) <= most_transfers]
        if not options:
            return 0
        latency_us = pace_across(bare, self.ends, self.groups.paths, rails=self.rails).latency_us
        nearly = NEARLY_STRAIGHT if self.straight else NEARLY
        enough_us = max(nearly * min(map(owner_us, options)), SHORT_OF_LATENCY * latency_us)
        enough = [n for n in options if owner_us(n) <= enough_us]
        if self.straight or not self.on_gpus:
            return enough[0]
        return max(n for n in enough if n in (enough[0], bare.count) or owners_transfers(bare, n) <= FEW_TRANSFERS)

    def _slowest_of(self, at_once: int) -> float:
        """What a byte takes of the slowest members of a group that own pieces together, in the order of owning."""
        order = [self.rails[n] for n in owning_order(len(self.rails))]
        windows = ([order[(low + n) % len(order)] for n in range(at_once)] for low in range(len(order)))
        return max(pace_across(self.bare, self.ends, self.groups.paths, rails=some).us_of_byte for some in windows)

    @cached_property
    def straight(self) -> bool:
        """Whether one root by its own rail takes no longer than over all rails, and inside its group."""
        if self.request.collective.name == "allreduce" or len(self.rails) == 1:  # on one rail both are the same
            return False
        pace = pace_of(self.bare, self.ends, self.groups.paths, self.groups.rings(), rails=self.rails)
        (inside_us, across_us), latency_us = pace.slice_us, pace.latency_us[0]  # of a byte, on every rail
        parts, payload_bytes = len(self.rails), self.request.payload_bytes
        own_us, rails_us = (parts - 1) / parts * payload_bytes * inside_us, payload_bytes / parts * across_us
        straight_us = payload_bytes * self.slowest_of(1)
        return straight_us <= min(latency_us + own_us + rails_us, max(NEARLY_STRAIGHT * own_us, ALONE * rails_us))
