"""Advice on switches that could reduce in the network, and whether the plan's operator could use them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from topocomm.operators.operator import Operator
from topocomm.planning.plan import Plan
from topocomm.planning.routing.routes import Edge, link_figures
from topocomm.topology.draw.names import ranges
from topocomm.topology.model import Device, Topology
from topocomm.topology.network.in_network import IN_NETWORK, knows

REDUCING = ("allreduce", "reduce", "reduce_scatter")
"""Collectives of such switches."""
FOLDING = (*REDUCING, "scan", "exscan")
"""Collectives that get notes."""
MOST_NAMED = 3


def in_network_notes(plan: Plan, topology: Topology, operator: Operator) -> list[str]:
    """Return a note for each technology of reducing switches between the plan's ranks: its use, or why there is none.

    Schedules never use such switches. The operator is taken at its default types.
    """
    if plan.collective.name not in FOLDING:
        return []
    ranks = Counter(topology.by_id[end].host for end in set(plan.ranks))
    hosts = set(topology.hosts)
    types = [str(field.dtype) for field in operator.default_layout(1).fields]
    notes = []
    for kind, own in IN_NETWORK.items():
        switches = [  # on hosts of several of the ranks, or in the network between several hosts
            device
            for device in topology.devices
            if device.in_network == kind and (ranks[device.host] > 1 if device.host in hosts else len(ranks) > 1)
        ]
        if not switches:
            continue
        more = f" and {len(switches) - MOST_NAMED} more" if len(switches) > MOST_NAMED else ""
        who = f"{ranges(device.id for device in switches[:MOST_NAMED])}{more} ({own.name})"
        why = _why_not(plan, operator.name, types, knows(kind, operator.name, types))
        if why:
            notes.append(f"{who} can reduce {', '.join(own.types)} of numbers on the way; no use here: {why}")
        else:
            limit = _limit(plan, switches, topology)
            by_native = kind == "nvls" and plan.native is not None and plan.native.algorithm.startswith("NVLS")
            use = "no schedule uses it" + (f", {plan.native.call} does" if by_native and plan.native else "")
            notes.append(f"{who} could reduce {operator.name} of {types[0]} on the way; {use}{limit}")
    return notes


def _why_not(plan: Plan, operator: str, types: Sequence[str], known: bool) -> str:
    """Why reducing switches are of no use to a plan, in words; "" where they are."""
    if not known and operator in ("sum", "min", "max"):
        return f"they know no {operator} of {', '.join(types)}"
    if not known:
        return f"they cannot be given {operator}"
    if plan.collective.name not in REDUCING:
        return f"they know no {plan.collective.name}"
    return "they fold in an order of their own" if plan.order == "canonical" else ""


def _limit(plan: Plan, switches: Sequence[Device], topology: Topology) -> str:
    """The throughput bound of an allreduce through one switch, in words.

    Every value leaves its endpoint once and every result enters one, whatever the switch does.
    """
    ends = set(plan.ranks)
    rates: dict[Edge, float] = {edge: figures.gb_per_s for edge, figures in link_figures(topology)[0].items()}
    joins_all = any(all((end, s.id) in rates and (s.id, end) in rates for end in ends) for s in switches)
    if plan.collective.name != "allreduce" or not joins_all:
        return ""
    most = min(sum(rate for edge, rate in rates.items() if edge[side] == end) for end in ends for side in (0, 1))
    return f"; with it throughput <= {most:.2f} GB/s"
