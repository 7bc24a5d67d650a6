"""The least time with bytes from its witness. Why each holds: docs/concepts/cost-models.md, section Bounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise, product

from topocomm.errors import PlanError
from topocomm.planning.certificate_checker.flow_witness import least_flow_us
from topocomm.planning.certificate_checker.leaving_witness import least_leaving_us
from topocomm.planning.certificate_checker.lengths_witness import LengthsWitness
from topocomm.planning.certificate_checker.matchings_witness import MatchingsWitness
from topocomm.planning.certificate_checker.neighbours_witness import NeighboursWitness
from topocomm.planning.certificate_checker.rederive_bounds import SAME, Witness, WitnessChecker
from topocomm.planning.collectives import IN_PARTS, PARTS_GIVEN


class TimeWitnesses:
    """Derives times with bytes, without launches.

    Attributes:
        kinds: (bound, kind of witness) -> function that derives the value, or raises PlanError if the witness is wrong.
    """

    def __init__(self, checker: WitnessChecker, alpha_us: float) -> None:
        self.checker, self.graph, self.needs, self.plan = checker, checker.graph, checker.needs, checker.plan
        self.kinds: dict[tuple[str, str], Callable[[Witness], float | None]] = {
            ("time", "latency"): lambda _: alpha_us,
            ("time", "border"): self._border,
            ("time", "relays"): self._relays,
            ("time", "leaving"): self._leaving,
            ("time", "ports"): self._ports,
            ("time", "group"): self._group,
            ("time", "endpoint"): self._endpoint,
            ("time", "weights"): self._weights,
            ("time", "lengths"): self._lengths,
            ("time", "neighbours"): self._neighbours,
            ("time", "matchings"): self._matchings,
            ("time", "prefix"): self._prefix,
            ("time", "flow"): self._flow,
        }

    def _us(self, gb_per_s: float) -> float:
        """Time of the payload at a rate."""
        return self.plan.payload_bytes / gb_per_s / 1e3

    def _across_us(self, witness: Witness, groups: list[list[str]]) -> float:
        """Return the latency between groups that the witness states, if no message takes less."""
        label_of = {name: index for index, group in enumerate(groups) for name in group}
        least_us = self.graph.cheapest_us({end: label_of.get(end, -1) for end in self.graph.ends})
        stated_us: float = witness["across_us"]
        if not 0 <= stated_us <= least_us + SAME:
            raise PlanError(f"certificate: time witness: {stated_us!r} us across, some message takes {least_us!r}")
        return stated_us

    def _cheapest_us(self, witness: Witness) -> float:
        return self.checker.cheapest_us(witness["cheapest_us"])

    def _border(self, witness: Witness) -> float:
        """A cut or a partition: all that crosses has left one message before the end."""
        of = witness["of"]
        if of["bounds"] != "throughput":
            raise PlanError(f"certificate: time witness: expected a witness of throughput, got one of {of['bounds']}")
        rate = self.checker.kinds["throughput", of["kind"]](of)
        return self._across_us(witness, of.get("groups") or [of["group"]]) + self._us(rate or 1.0)

    def _relays(self, witness: Witness) -> float:
        """Derive the least over the shares of rows that go at first hand, by trying every corner."""
        groups = self.checker.every_endpoint_once(witness["groups"])
        name, count = self.needs.name, len(groups)
        direction = {"broadcast": "out", "allreduce": "in", "reduce": "in", "scan": "in", "exscan": "in"}.get(name)
        rooted = name != "allreduce"
        root = {"reduce": self.plan.collective.root, "broadcast": self.plan.collective.root}.get(name, -1)
        at_root = rooted and self.plan.ranks[root] in groups[0]
        if direction != witness["direction"] or not (at_root or (not rooted and all(self.needs.gives))):
            raise PlanError(
                "certificate: relays witness: expected an allreduce, or the root's group first, and its direction"
            )
        across_us = self._across_us(witness, witness["groups"])
        border = groups[:1] if rooted else groups
        into, rate = direction == "in", self._by_ports if witness["by_ports"] else self.graph.borders
        value_us = left_us = self._us(rate(border, into=into))
        if witness.get("by_root"):  # what is relayed has left the root, at its ports, two messages before the end
            if name != "broadcast":
                raise PlanError("certificate: relays witness: expected a broadcast, whose root has ports")
            left_us = max(value_us, self._us(self._by_ports([{self.plan.ranks[root]}], into=False)))
        # (time at first hand alone) or the least over a share: all that is sent, and what is sent late.
        every = count - 1 if rooted else count * (count - 1)
        once = 1 if rooted else 2 * (count - 1)

        def late_us(share: float) -> float:
            if rooted:
                sent, late_us = share * (count - 1) + 1 - share, (1 - share) * left_us
            else:
                sent, late_us = max(once, share * count * (count - 2) + count), count * (1 - share) * value_us
            return max(across_us + sent * value_us, 2 * across_us + late_us)

        low, high = 0.0, 1.0  # late_us is convex in the share
        for _ in range(200):
            third = (high - low) / 3
            low, high = (low, high - third) if late_us(low + third) <= late_us(high - third) else (low + third, high)
        return min(across_us + every * value_us, late_us((low + high) / 2))

    def _leaving(self, witness: Witness) -> float:
        """Rows get from a group to all others at first hand, or have left its ranks two messages before the end."""
        groups = self.checker.every_endpoint_once(witness["groups"])
        return least_leaving_us(self.checker, self._across_us(witness, witness["groups"]), groups)

    def _by_ports(self, groups: Sequence[set[str]], *, into: bool) -> float:
        """Return the GB/s of as many of the fastest links of each endpoint, a group of its own, as it has ports."""
        if any(len(group & self.graph.ends) > 1 for group in groups):
            raise PlanError("certificate: relays witness: expected single endpoints, whose ports they are")
        ends = [end for group in groups for end in group & self.graph.ends]
        return sum(sum(sorted(self.graph.rates_at(end, into=into))[-self.plan.ports :]) for end in ends)

    def _ports(self, witness: Witness) -> float:
        """Messages hold a port of their endpoints for their bytes, at most at the rate of the links they must cross."""
        singles = [{end} for end in sorted(self.graph.ends)]
        chain = [singles, *(self.checker.every_endpoint_once(groups) for groups in witness["levels"])]
        for fine, coarse in pairwise(chain):
            if not all(any(own & self.graph.ends <= group for group in coarse) for own in fine):
                raise PlanError("certificate: ports witness: a group lies in no group of the next level")
        held_us, before_us, rate = 0.0, 0.0, float("inf")
        for groups in chain:
            rate = min(rate, self.graph.fastest_leaving(groups))
            held_us += self._values_between(groups) * (self._us(rate) - before_us)
            before_us = self._us(rate)
        return self._cheapest_us(witness) + held_us / (self.plan.ports * len(singles))

    def _values_between(self, groups: list[set[str]]) -> float:
        ranks = [{rank for rank, end in enumerate(self.plan.ranks) if end in group} for group in groups]
        everybody = set(range(self.needs.ranks))
        into = sum(self.needs.share_into(own) for own in ranks)
        out = sum(self.needs.share_into(everybody - own) for own in ranks)
        giving = sum(any(self.needs.gives[rank] for rank in own) for own in ranks)
        return max(into, out, len(groups) + giving - 2 if self.needs.name == "allreduce" else 0.0)

    def _group(self, witness: Witness) -> float:
        """What a group's endpoints send or receive, and of it what crosses the border at rates of links there."""
        group, into = self.checker.devices(witness["group"]), {"in": True, "out": False}[witness["direction"]]
        ends = group & self.graph.ends
        crossing = self._share(ends, into=into)
        moved = max(crossing, sum(self._share({end}, into=into) for end in ends))
        if not ends or not crossing > 0:
            raise PlanError("certificate: group witness: nothing must cross the border of the group")
        at_ends = max(rate for end in ends for rate in self.graph.rates_at(end, into=into))
        across = min(at_ends, self.graph.fastest_across(group, into=into))
        held_us = crossing * self._us(across) + (moved - crossing) * self._us(at_ends)
        after_us = self._leaves_us(witness, ends) if "across_us" in witness else self._cheapest_us(witness)
        return after_us + held_us / (self.plan.ports * len(ends))

    def _leaves_us(self, witness: Witness, ends: set[str]) -> float:
        """All that a group without the root of a reduce sends has left it one message before the end."""
        root = self.plan.ranks[self.plan.collective.root]
        if self.needs.name != "reduce" or witness["direction"] != "out" or root in ends:
            raise PlanError("certificate: group witness: expected what a group without the root of a reduce sends")
        return self._across_us(witness, [sorted(ends)])

    def _share(self, ends: set[str], *, into: bool) -> float:
        """Payloads that must enter, or leave, these endpoints."""
        own = {rank for rank, end in enumerate(self.plan.ranks) if end in ends}
        return self.needs.share_into(own if into else set(range(self.needs.ranks)) - own)

    def _endpoint(self, witness: Witness) -> float:
        """An endpoint has as many messages at once as it has ports, each over one link."""
        name, into = witness["endpoint"], {"in": True, "out": False}[witness["direction"]]
        share = self._share({name}, into=into)
        rates = sorted(self.graph.rates_at(name, into=into), reverse=True)[: self.plan.ports]
        if name not in self.plan.ranks or not share > 0 or not rates:
            raise PlanError(f"certificate: endpoint witness: nothing must cross at {name!r}")
        return self._cheapest_us(witness) + share * self._us(sum(rates))

    def _lengths(self, witness: Witness) -> float:
        """What pairs exchange takes of links, ports and borders, by length, what its shortest ways have at least."""
        lengths = LengthsWitness(self.graph, self.needs, self.plan)
        return self._cheapest_us(witness) + self._us(
            lengths.gb_per_s(witness["links"], witness["ports"], witness.get("borders", ()))
        )

    def _neighbours(self, witness: Witness) -> float:
        """What results take of the ranks before them, by length, is at most what links and ports carry."""
        neighbours = NeighboursWitness(self.graph, self.needs, self.plan)
        group = self.checker.devices(witness["group"])
        return self._cheapest_us(witness) + self._us(neighbours.gb_per_s(group, witness["links"], witness["ports"]))

    def _matchings(self, witness: Witness) -> float:
        """What pairs exchange takes of messages that go at once, by prices, what its cheapest ways have at least."""
        matchings = MatchingsWitness(self.graph, self.needs, self.plan)
        return self._cheapest_us(witness) + self._us(matchings.gb_per_s(witness["prices"], witness["matchings"]))

    def _weights(self, witness: Witness) -> float:
        """What must cross groups, by weight, holds ports so long: no message counts more than the ports it holds."""
        held = {(name, way): weight for name, way, weight in witness["ports"]}
        groups = [(self.checker.devices(ids) & self.graph.ends, way, weight) for ids, way, weight in witness["groups"]]
        members = sorted({name for name, _ in held}.union(*(group for group, *_ in groups)))
        weights = [*held.values(), *(weight for *_, weight in groups)]
        if not set(members) <= self.graph.ends or min(weights) < 0 or {way for _, way, _ in groups} - {"in", "out"}:
            raise PlanError("certificate: weights witness: expected endpoints with ranks, and weights of at least 0")
        for end, into in product(members, (False, True)):
            rates = self.graph.fastest_rates(end, into=into)
            others = max((rate for name, rate in rates.items() if name not in members), default=0.0)
            for other, rate in [("", others), *((name, rates.get(name, 0.0)) for name in members)]:
                src, dst = (other, end) if into else (end, other)
                counted = sum(
                    weight for own, way, weight in groups if (src in own, dst in own) == (way == "out", way == "in")
                )
                holds = held.get((src, "out"), 0.0) + held.get((dst, "in"), 0.0)
                if rate and counted * rate > holds * (1 + SAME):
                    raise PlanError(
                        f"certificate: weights witness: a message from {src or 'another'} to {dst or 'another'} counts "
                        f"{counted * rate!r}, and holds ports for {holds!r}"
                    )
        needed = sum(weight * self._share(own, into=way == "in") for own, way, weight in groups)
        return self._cheapest_us(witness) + self._us(self.plan.ports * sum(held.values()) / needed)

    def _prefix(self, witness: Witness) -> float:
        """Derive the least time in which paths are so long that what they leave to exchange takes no longer."""
        groups, graph = self.checker.every_endpoint_once(witness["groups"]), self.graph
        first, last = self.plan.ranks[0], self.plan.ranks[-1]
        (begins,), (ends,) = ([group for group in groups if end in group] for end in (first, last))
        if self.needs.name not in ("scan", "exscan") or begins is ends or first == last:
            raise PlanError("certificate: prefix witness: expected a prefix, its first and last rank in two groups")
        singles = [{end} for end in sorted(graph.ends)]
        inside_us = self._across_us({"across_us": witness["apart_us"]}, [sorted(end) for end in singles])
        across_us = self._across_us(witness, witness["groups"])
        if not 0 < inside_us <= across_us:
            raise PlanError("certificate: prefix witness: expected a latency, between groups no less")
        fastest = graph.fastest_leaving(singles)
        slowest = min(fastest, graph.fastest_leaving(groups))
        out, into = (self._by_ports([{end}], into=end == last) for end in (first, last))
        waits_us = (self._us(out) + self._us(into)) / 2
        border_us = (self._us(graph.borders([begins], into=False)) + self._us(graph.borders([ends], into=True))) / 2
        all_borders_us = self._us(graph.borders(groups, into=True))
        port_us, more_us = (us / (self.plan.ports * len(singles)) for us in (self._us(fastest), self._us(slowest)))

        def held_us(across: float, within_us: float) -> float:
            """Time at the ports of all endpoints, with so many messages of a path between groups."""
            steps = (within_us - waits_us - (across - 1) * (across_us - inside_us)) / inside_us
            values, crossing = (max(n - 1, 2 * n - 2 - d) for n, d in ((len(singles), steps), (len(groups), across)))
            return inside_us + values * port_us + crossing * (more_us - port_us)

        def is_enough(within_us: float) -> bool:
            steps_us = min(within_us - border_us, within_us - waits_us + across_us - inside_us)
            low, high = 1.0, steps_us / across_us
            if high < low:
                return False
            crossing = max(len(groups) - 1, 2 * len(groups) - 2 - high)
            for _ in range(100):  # `held_us` is convex in the messages between groups
                third = (high - low) / 3
                less = held_us(low + third, within_us) <= held_us(high - third, within_us)
                low, high = (low, high - third) if less else (low + third, high)
            return within_us >= max(held_us(low, within_us), across_us + crossing * all_borders_us)

        short_us, long_us = 0.0, across_us
        while not is_enough(long_us):
            short_us, long_us = long_us, 2 * long_us
        for _ in range(100):
            middle_us = (short_us + long_us) / 2
            short_us, long_us = (short_us, middle_us) if is_enough(middle_us) else (middle_us, long_us)
        return short_us

    def _flow(self, witness: Witness) -> float:
        """What one rank needs of another comes to it over all ways at once."""
        ends, src, dst = self.checker.pair(witness), witness["from"], witness["to"]
        share = 1.0
        if self.needs.pairs:
            share = self.needs.pairs[src][dst]
        elif self.plan.collective.name in IN_PARTS:
            share = self.needs.shares[src if self.plan.collective.name in PARTS_GIVEN else dst]
        if ends[0] == ends[1] or not share > 0:
            raise PlanError(f"certificate: flow witness: nothing must get from {ends[0]} to {ends[1]}")
        return least_flow_us(
            self.graph, ends, witness["links"], witness["ports"], self.plan.ports, share * self._us(1.0)
        )
