"""One plan for least latency: its time beside the best known, the bound and the next best, and what planning took."""

from __future__ import annotations

import topocomm
from plan_tables.fresh import Took, timed
from plan_tables.machines import Machine
from topocomm.planning.report.plan_comparison import ranked

BEST_KNOWN_US = {1: 1.8, 2: 6.8, 4: 8.0, 8: 8.6, 16: 13.6, 64: 15.4, 2048: 28.4}
"""Of an allreduce on so many hosts of 8 GPUs, 0.6 us apart inside and 5.0 us on the own rail."""
KNOWN_SYSTEM = "dgx-h100"
MOST_CHECKED_RANKS = 1024
"""Largest rank count whose bound is derived again from its witness."""
HEADER = (
    f"{'machine':40} {'collective':14} {'ranks':>5} {'algorithm':18} {'rounds':>6} {'us':>6} {'known':>5} "
    f"{'us/known':>8} {'bound':>6} {'bound/us':>8} {'next best':21} {'us':>6} {'s':>7} {'cpu s':>7}"
)


def planned(machine: Machine, collective: str) -> tuple[topocomm.Topology, topocomm.Plan, Took]:
    """Return the plan of least latency, its bound checked, and the costs of planning."""
    topology = machine.topology()
    plan, took = timed(lambda: topocomm.plan(topology, collective, payload_bytes=0, objective="latency"))
    if len(plan.ranks) <= MOST_CHECKED_RANKS:
        topocomm.check_certificate(topology, plan)
    return topology, plan, took


def row(machine: Machine, collective: str) -> str:
    """Format one line of the table."""
    topology, plan, took = planned(machine, collective)
    us, bound_us = plan.figures.alpha_us, plan.certificate.alpha_lower_bound_us
    best_us = None
    if machine.system == KNOWN_SYSTEM and not machine.defect and collective == "allreduce":
        best_us = BEST_KNOWN_US.get(machine.hosts)
    known = f"{'':5} {'':8}" if best_us is None else f"{best_us:5.1f} {us / best_us:8.3f}"
    rivals = [rival for rival in ranked(plan, topology, topocomm.SUM) if rival.algorithm != plan.algorithm]
    following = f"{rivals[0].algorithm:21} {rivals[0].figure:6.2f}" if rivals else f"{'':21} {'':6}"
    return (
        f"{topology.name:40} {collective:14} {len(plan.ranks):5} {plan.algorithm:18} {plan.rounds:6} {us:6.2f} {known} "
        f"{bound_us:6.2f} {bound_us / us:8.3f} {following} {took.wall_s:7.3f} {took.cpu_s:7.3f}"
    )
