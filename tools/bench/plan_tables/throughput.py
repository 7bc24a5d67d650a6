"""One plan for the most bytes a second: GB/s of its schedule beside the bound, its trees, and what libraries run."""

from __future__ import annotations

import topocomm
from plan_tables.fresh import timed
from plan_tables.machines import Machine
from plan_tables.rings import rings_gb_per_s
from topocomm.planning.cost.cost_models import Cost
from topocomm.planning.forests.forest import forest_of
from topocomm.planning.report.plan_comparison import ranked
from topocomm.planning.routing.paths import PathFinder

PAYLOAD_BYTES = 4 << 20
HALVING = ("rabenseifner", "halving", "doubling")
"""Names of recursive halving and doubling in the collectives that have them."""
HEADER = (
    f"{'machine':40} {'ranks':>5} {'algorithm':14} {'GB/s':>7} {'bound':>7} {'of it':>6} {'s':>6} {'cpu s':>6} | "
    f"{'trees':>7} {'of bound':>8} {'a root':>6} {'height':>6} {'cpu s':>6} | {'ring':>8} {'rings':>8} "
    f"{'halving':>8} {'two-tree':>8}"
)


def row(machine: Machine, collective: str, ordered: bool) -> str:
    """Format one line of the table."""
    operator = topocomm.AFFINE if ordered else topocomm.SUM
    topology = machine.topology()
    plan, took = timed(
        lambda: topocomm.plan(
            topology, collective, payload_bytes=PAYLOAD_BYTES, operator=operator, objective="throughput"
        )
    )
    topocomm.check_certificate(topology, plan)
    reached, bound = plan.figures.throughput_gb_per_s or 0.0, plan.certificate.throughput_upper_bound_gb_per_s or 0.0
    rivals = {rival.algorithm: rival.figure for rival in ranked(plan, topology, operator)}
    halving = next((rivals[name] for name in HALVING if name in rivals), None)
    rings = rings_gb_per_s(topology, PAYLOAD_BYTES // 4, 4) if collective == "allreduce" and not ordered else None
    chosen = (
        f"{plan.algorithm:14} {reached:7.2f} {bound:7.2f} {reached / bound:6.4f} {took.wall_s:6.2f} {took.cpu_s:6.2f}"
    )
    others = (rivals.get("ring"), rings, halving, rivals.get("two-tree"))
    return (
        f"{topology.name:40} {len(plan.ranks):5} {chosen} | {trees(topology, plan, commutative=not ordered)} | "
        + " ".join(" " * 8 if figure is None else f"{figure:8.2f}" for figure in others)
    )


def trees(topology: topocomm.Topology, plan: topocomm.Plan, *, commutative: bool) -> str:
    """GB/s of the packed trees as a schedule, their share of the packing's own bound, and what they are."""
    paths, rows = PathFinder(topology), plan.schedule.rows
    found, took = timed(lambda: forest_of(plan.collective, paths, plan.ranks, rows, commutative=commutative))
    if found is None:
        return f"{'none are packed':37}"
    cost = Cost(found.schedule, plan.ranks, paths, row_bytes=PAYLOAD_BYTES // rows)
    gb_per_s = cost.throughput_gb_per_s or 0.0
    return (
        f"{gb_per_s:7.2f} {gb_per_s / found.bound_gb_per_s:8.4f} {found.trees_per_root:6} {found.height:6} "
        f"{took.cpu_s:6.2f}"
    )
