"""The least time of a sum by what leaves the ranks of a group two messages before the end, from its witness."""

from __future__ import annotations

from topocomm.errors import PlanError
from topocomm.planning.certificate_checker.rederive_bounds import WitnessChecker


def least_leaving_us(checker: WitnessChecker, across_us: float, groups: list[set[str]]) -> float:
    """Return the least time where a share of rows gets from a group to all others at first hand.

    The first of the groups is that of the root of a reduce, and each other may be the one; of an allreduce it is it.

    Raises:
        PlanError: It is neither of these, or fewer than two groups have something to send.
    """
    needs, plan, graph = checker.needs, checker.plan, checker.graph
    rooted = needs.name == "reduce"
    if not (rooted or (needs.name == "allreduce" and all(needs.gives))):
        raise PlanError("certificate: leaving witness: expected a reduce, or an allreduce of values of all ranks")
    if rooted and plan.ranks[plan.collective.root] not in groups[0]:
        raise PlanError("certificate: leaving witness: expected the group of the root first")
    senders = groups[1:] if rooted else groups[:1]
    late_us = [us for group in senders if (us := _late_us(checker, group)) > 0]
    others = len(late_us) if rooted else len(groups) - 1
    if not late_us or others < 2:
        raise PlanError("certificate: leaving witness: expected several groups that must send something")
    payload_us = plan.payload_bytes / 1e3
    every_us = others * payload_us / graph.borders([groups[0]], into=rooted)
    low, high = 0.0, 1.0  # the first grows with the share at first hand, the second falls: where they meet is the least
    for _ in range(200):
        share = (low + high) / 2
        early = across_us + share * every_us < 2 * across_us + (1 - share) * min(late_us)
        low, high = (share, high) if early else (low, share)
    return across_us + low * every_us


def _late_us(checker: WitnessChecker, group: set[str]) -> float:
    """What all that a group must send takes: at all its ports, at the slowest endpoint, or at its border."""
    needs, plan, graph = checker.needs, checker.plan, checker.graph

    def leaves(ends: set[str]) -> float:
        return needs.share_into({rank for rank, end in enumerate(plan.ranks) if end not in ends})

    ends = sorted(group & graph.ends)
    crossing = leaves(set(ends))
    if not crossing > 0:
        return 0.0
    moved = {end: leaves({end}) for end in ends}
    rates = {end: sorted(graph.rates_at(end, into=False)) for end in ends}
    fast = max(rate for own in rates.values() for rate in own)
    slow = min(fast, graph.fastest_across(group, into=False))
    in_all = max(crossing, sum(moved.values()))
    at_ports = (crossing / slow + (in_all - crossing) / fast) / (plan.ports * len(ends))
    at_ends = max(moved[end] / sum(rates[end][-plan.ports :]) for end in ends)
    return max(at_ports, at_ends, crossing / graph.borders([group], into=False)) * plan.payload_bytes / 1e3
