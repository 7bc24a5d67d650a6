"""The value of each bound from its witness. Why each holds: docs/concepts/cost-models.md, section Bounds."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import chain
from typing import Any

from topocomm.errors import PlanError
from topocomm.planning.certificate_checker.hierarchy_witness import least_levels_us
from topocomm.planning.certificate_checker.witness_graph import WitnessGraph
from topocomm.planning.collectives import FROM_ROOT, IN_PAIRS, IN_PARTS, PARTS_GIVEN, TO_ROOT, Collective
from topocomm.planning.plan import Plan
from topocomm.topology.model import Topology

SAME = 1e-9
"""Figures that differ by less, absolutely or relatively, are equal: they are sums in another order."""
Witness = dict[str, Any]


def same(a: float | None, b: float | None) -> bool:
    """Whether two figures agree."""
    return a == b if a is None or b is None else abs(a - b) <= SAME * max(1.0, abs(b))


class Needs:
    """Which contributions each result contains, by the definitions of the collectives."""

    def __init__(self, collective: Collective) -> None:
        self.name, self.ranks = collective.name, collective.ranks
        everybody = [True] * self.ranks
        self.gives, self.gets = everybody, everybody
        self.shares = [0.0] * self.ranks
        self.pairs: list[list[float]] = []
        if collective.name in IN_PAIRS:
            self._set_pairs(collective)
        elif collective.name in IN_PARTS:
            rows = sum(collective.parts)
            self.shares = [part / rows if rows else 1 / self.ranks for part in collective.parts]
            some = [share > 0 for share in self.shares]
            self.gives, self.gets = (some, everybody) if collective.name in PARTS_GIVEN else (everybody, some)
        elif collective.shards:
            self.gives = [collective.shards[rank] < collective.shards[rank + 1] for rank in range(self.ranks)]
        only_root = [rank == collective.root for rank in range(self.ranks)]
        if collective.name in FROM_ROOT:
            self.gives = only_root
        elif collective.name in TO_ROOT:
            self.gets = only_root

    def _set_pairs(self, collective: Collective) -> None:
        ranks = range(self.ranks)
        rows = [collective.parts[low : low + self.ranks] for low in range(0, self.ranks**2, self.ranks)]
        most = max(map(sum, rows))
        self.pairs = [[part / most if most else 1 / self.ranks for part in own] for own in rows]
        self.gives = [any(self.pairs[a][b] for b in ranks if b != a) for a in ranks]
        self.gets = [any(self.pairs[a][b] for a in ranks if a != b) for b in ranks]

    def __call__(self, src: int, dst: int) -> bool:
        """Whether the result of dst contains something of src, another rank."""
        if self.pairs:
            return src != dst and self.pairs[src][dst] > 0
        in_order = self.name not in ("scan", "exscan") or src < dst
        return src != dst and self.gives[src] and self.gets[dst] and in_order

    def partners(self, rank: int, side: str) -> list[int]:
        """Return the other ranks that a rank "hears" of, or "reaches"."""
        if side not in ("hears", "reaches"):
            raise ValueError(f"side {side!r}")
        ranks = range(self.ranks)
        return [other for other in ranks if (self(other, rank) if side == "hears" else self(rank, other))]

    def least_messages(self) -> int:
        """Return the least messages: each rank but one receives (or sends) one; where c givers reach all, c-1 more.

        One that alone gets receives of, and one that alone gives sends to, each rank that it needs or that needs it.
        """
        if self.ranks == 1 or self.name in ("scan", "exscan"):
            return self.ranks - 1
        if self.pairs and any(
            not self(src, dst) for src in range(self.ranks) for dst in range(self.ranks) if src != dst
        ):
            return max(sum(self.gives), sum(self.gets))
        if 1 in (sum(self.gives), sum(self.gets)):
            alone, some = (self.gets, self.gives) if sum(self.gets) == 1 else (self.gives, self.gets)
            return sum(some) - some[alone.index(True)]
        return self.ranks - 1 + min(sum(self.gives), sum(self.gets)) - 1

    def share_into(self, inside: set[int]) -> float:
        """Return the payloads that must enter a set of ranks."""
        outside = [rank for rank in range(self.ranks) if rank not in inside]
        if self.name in ("scan", "exscan"):
            before, stretches = 0, set()
            for rank in range(self.ranks):
                before += rank not in inside
                stretches |= {before} if rank in inside else set()
            return float(len(stretches - {0}))
        if self.pairs:
            return sum(self.pairs[src][dst] for src in outside for dst in inside)
        if not any(self.gives[rank] for rank in outside) or not any(self.gets[rank] for rank in inside):
            return 0.0
        if self.name in IN_PARTS:
            return sum(self.shares[rank] for rank in (outside if self.name in PARTS_GIVEN else inside))
        return 1.0


class WitnessChecker:
    """Derives the value of a bound from its witness; the certificate of the plan is not read.

    Attributes:
        kinds: (bound, kind of witness) -> function that derives the value, or raises PlanError if the witness is wrong.
    """

    def __init__(self, topology: Topology, plan: Plan) -> None:
        self.plan, self.needs = plan, Needs(plan.collective)
        self.graph = WitnessGraph(topology, plan.ranks)
        self.kinds: dict[tuple[str, str], Callable[[Witness], float | None]] = {
            ("rounds", "none"): self._nothing,
            ("rounds", "doubling"): self._doubling,
            ("rounds", "port"): self._port,
            ("rounds", "messages"): self._messages,
            ("rounds", "hops"): self._hops,
            ("latency", "none"): self._nothing,
            ("latency", "path"): lambda witness: self.graph.relayed_us(*self.pair(witness)),
            ("latency", "messages"): self._in_a_row,
            ("latency", "levels"): self._levels,
            ("latency", "postal"): self._postal,
            ("throughput", "none"): self._unbounded,
            ("throughput", "cut"): self._cut,
            ("throughput", "partition"): self._partition,
        }

    def _nothing(self, _: Witness) -> float:
        if self.needs.least_messages():
            raise PlanError("certificate: a bound of 0, and some message must be sent")
        return 0.0

    def _unbounded(self, _: Witness) -> None:
        places, ranks = self.plan.ranks, range(self.needs.ranks)
        apart = ((src, dst) for src in ranks for dst in ranks if places[src] != places[dst])
        if any(self.needs(src, dst) for src, dst in apart):
            raise PlanError("certificate: throughput without a bound, and something must cross between endpoints")

    def _counted(self, witness: Witness, derived: object, key: str = "needs") -> None:
        if witness[key] != derived:
            raise PlanError(
                f"certificate: {witness['kind']} witness of {witness['bounds']}: {key} is {witness[key]!r}, the "
                f"collective and the ranks give {derived!r}"
            )

    def _rank(self, rank: int) -> int:
        """Return the rank, if it is one; an index below 0 is refused."""
        if not 0 <= rank < self.needs.ranks:
            raise PlanError(f"certificate: rank {rank!r} of a witness is outside 0..{self.needs.ranks - 1}")
        return rank

    def _partners(self, witness: Witness) -> list[int]:
        return self.needs.partners(self._rank(witness["rank"]), witness["side"])

    def _doubling(self, witness: Witness) -> float:
        """Derive the rounds with (K+1)^rounds >= ranks heard of or reached, the own one included."""
        self._counted(witness, len(self._partners(witness)) + 1)
        rounds = 0
        while (self.plan.ports + 1) ** rounds < witness["needs"]:
            rounds += 1
        return rounds

    def _port(self, witness: Witness) -> float:
        side = {"in": "hears", "out": "reaches"}[witness["direction"]]
        on_endpoint = [rank for rank, end in enumerate(self.plan.ranks) if end == witness["endpoint"]]
        self._counted(witness, sum(bool(self.needs.partners(rank, side)) for rank in on_endpoint), "messages")
        return -(-int(witness["messages"]) // self.plan.ports)

    def _messages(self, witness: Witness) -> float:
        self._counted(witness, self.needs.least_messages(), "messages")
        self._counted(witness, len(set(self.plan.ranks)), "endpoints")
        return -(-int(witness["messages"]) // (self.plan.ports * len(set(self.plan.ranks))))

    def pair(self, witness: Witness) -> tuple[str, str]:
        """Return the endpoints of a pair of ranks of which one needs the other."""
        src, dst = self._rank(witness["from"]), self._rank(witness["to"])
        if not self.needs(src, dst):
            raise PlanError(f"certificate: {witness['kind']} witness: rank {dst} needs nothing of rank {src}")
        return self.plan.ranks[src], self.plan.ranks[dst]

    def _hops(self, witness: Witness) -> float:
        hops = self.graph.hops(*self.pair(witness))
        self._counted(witness, hops, "hops")
        return hops

    def cheapest_us(self, stated_us: float) -> float:
        """Return the least latency of any message, which must be that of the witness."""
        least_us = self.graph.cheapest_us(dict(zip(self.plan.ranks, self.plan.ranks, strict=True)))
        least_us = min(least_us, self.graph.turn_us(self.plan.ranks))
        if not same(stated_us, least_us):
            raise PlanError(f"certificate: the cheapest message takes {least_us!r} us, the witness says {stated_us!r}")
        return least_us

    def _in_a_row(self, witness: Witness) -> float:
        in_a_row = 1
        if self.plan.port_model == "alpha":
            row = witness["rounds"]
            in_a_row = int(self.kinds["rounds", row["kind"]](row) or 0)
        elif not self.needs.least_messages():
            in_a_row = 0
        self._counted(witness, in_a_row, "in_a_row")
        return in_a_row * self.cheapest_us(witness["cheapest_us"])

    def _levels(self, witness: Witness) -> float:
        """Derive the time from sets of pairs (own, foreign), computed apart in `hierarchy_witness`."""
        groups, rank, side = witness["groups"], witness["rank"], witness["side"]
        inside_us, across_us = witness["inside_us"], witness["across_us"]
        if self.plan.port_model != "alpha" or sorted(chain.from_iterable(groups)) != list(range(len(self.plan.ranks))):
            raise PlanError("certificate: levels witness: expected port model alpha and every rank in one group")
        group_of = {member: index for index, group in enumerate(groups) for member in group}
        labels: dict[str, int] = {}
        for member, end in enumerate(self.plan.ranks):
            if labels.setdefault(end, group_of[member]) != group_of[member]:
                raise PlanError(f"certificate: levels witness: the ranks of {end} are in two groups")
        self.cheapest_us(inside_us)
        least_us = self.graph.cheapest_us(labels)
        if not 0 < inside_us <= across_us or across_us > least_us + SAME:
            raise PlanError(
                f"certificate: levels witness: {across_us!r} us across groups, some message takes {least_us!r}"
            )
        counts = [True] * self.needs.ranks
        if self.needs.name not in ("scan", "exscan"):
            counts = self.needs.gives if side == "hears" else self.needs.gets
        partners = self._partners(witness)
        own = sum(group_of[other] == group_of[rank] for other in partners)
        self._counted(witness, [own + counts[rank], len(partners) - own])
        return least_levels_us(
            inside_us,
            across_us,
            members=max(map(len, groups)),
            most_own=max(1, *(sum(counts[member] for member in group) for group in groups)),
            ports=self.plan.ports,
            group_ports=self.plan.ports * max(len({self.plan.ranks[member] for member in group}) for group in groups),
            wanted=(own + counts[rank], len(partners) - own),
        )

    def _postal(self, witness: Witness) -> float:
        """Derive the least t with known(t) = 1 + K * (sum over i >= 0 of known(t - latency - i gap)) >= needs."""
        self._counted(witness, len(self._partners(witness)) + 1)
        latency_us, gap_us = self.cheapest_us(witness["cheapest_us"]), witness["gap_us"]
        least_us = self.graph.least_gap_us() if self.graph.turn_us(self.plan.ranks) > SAME else 0.0
        if self.plan.port_model != "loggp" or not (gap_us > 0 and same(gap_us, least_us)):
            raise PlanError(f"certificate: postal witness: gap {gap_us!r} us under loggp, links have {least_us!r}")
        known, heap = [(0.0, 1)], [latency_us]
        while known[-1][1] < witness["needs"]:
            now_us = heappop(heap)
            if now_us > known[-1][0] + SAME:
                count, start_us = 1, now_us - latency_us
                while start_us >= -SAME:
                    count += self.plan.ports * max(c for time_us, c in known if time_us <= start_us + SAME)
                    start_us -= gap_us
                known.append((now_us, count))
                heappush(heap, now_us + gap_us)
                heappush(heap, now_us + latency_us)
        return known[-1][0]

    def _cut(self, witness: Witness) -> float:
        group = self.devices(witness["group"])
        inside = {rank for rank, end in enumerate(self.plan.ranks) if end in group}
        into = {"in": True, "out": False}[witness["direction"]]
        share = self.needs.share_into(inside if into else set(range(self.needs.ranks)) - inside)
        if not share > 0 or not same(witness["share"], share):
            raise PlanError(
                f"certificate: cut witness: {witness['share']!r} of the payload must cross, the ranks inside make it "
                f"{share!r}"
            )
        return self.graph.borders([group], into=into) / share

    def _partition(self, witness: Witness) -> float:
        groups = self.every_endpoint_once(witness["groups"])
        if self.needs.name != "allreduce":
            raise PlanError(f"certificate: partition witness: expected an allreduce, got {self.needs.name}")
        giving = {end for end, gives in zip(self.plan.ranks, self.needs.gives, strict=True) if gives}
        into = {"in": True, "out": False}[witness["direction"]]
        return self.graph.borders(groups, into=into) / (
            len(groups) - 1 + sum(bool(group & giving) for group in groups) - 1
        )

    def every_endpoint_once(self, ids: list[list[str]]) -> list[set[str]]:
        """Return several groups of devices with ranks, which have every endpoint in one."""
        groups = [self.devices(group) for group in ids]
        held = sorted(end for group in groups for end in group & self.graph.ends)
        if held != sorted(self.graph.ends) or len(groups) < 2:
            raise PlanError("certificate: expected every endpoint with ranks in one of several groups")
        if any(group.isdisjoint(self.graph.ends) for group in groups):
            raise PlanError("certificate: a group without ranks")
        return groups

    def devices(self, ids: list[str]) -> set[str]:
        """Return a group of devices; each is one of the topology's, and named once."""
        group = set(ids)
        if len(group) != len(ids) or not group <= self.graph.devices:
            raise PlanError("certificate: a group of devices names one twice, or one that the topology does not have")
        return group
