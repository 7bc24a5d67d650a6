"""Planning time for latency on growing machines: uniform, and with one irregular host in a hundred."""

from __future__ import annotations

from statistics import median

from plan_tables.fresh import Took, each_alone
from plan_tables.latency import planned
from plan_tables.machines import Machine

LIMITS_S = {1: (0.05, 0.05), 16: (0.3, 0.3), 128: (1.0, 1.0), 2048: (5.0, 30.0)}
"""Limits in seconds by number of 8-GPU hosts: uniform, irregular."""
DEFECTS = ("1% of hosts uneven", "1% of hosts lack a NIC")
HEADER = (
    f"{'machine':40} {'ranks':>5} {'algorithm':18} {'us':>6} {'bound':>6} {'bound/us':>8} {'s':>7} {'cpu s':>7} "
    f"{'limit s':>7} {'cpu us/rank':>11} {'MiB':>5}"
)


def figures(machine: Machine) -> tuple[str, int, Took]:
    """(what the plan is, ranks, what planning took)."""
    topology, plan, took = planned(machine, "allreduce")
    us, bound_us = plan.figures.alpha_us, plan.certificate.alpha_lower_bound_us
    told = f"{plan.algorithm:18} {us:6.2f} {bound_us:6.2f} {bound_us / us:8.3f}"
    return f"{topology.name:40} {len(plan.ranks):5} {told}", len(plan.ranks), took


def row(machine: Machine, repeats: int) -> str:
    """Format one line of the table: median seconds, peak memory."""
    made = []
    for measured in each_alone(figures, [(machine,)] * repeats):
        if isinstance(measured, str):
            return measured
        made.append(measured)
    told, ranks, _ = made[0]
    wall_s, cpu_s = (median(took[column] for _, _, took in made) for column in (0, 1))
    peak_mib = max(took.peak_mib for _, _, took in made)
    limit = f"{LIMITS_S[machine.hosts][bool(machine.defect)]:7.2f}" if machine.hosts in LIMITS_S else f"{'':7}"
    return f"{told} {wall_s:7.3f} {cpu_s:7.3f} {limit} {cpu_s / ranks * 1e6:11.0f} {peak_mib:5.0f}"
