"""Packed trees on random machines of 4 to 8 GPUs beside the optimum of the joint linear program, by HiGHS."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

from plan_tables.fresh import timed
from topocomm import Device, Link, Topology
from topocomm.planning.collectives import IN_PARTS, Collective
from topocomm.planning.cost.cost_models import Cost
from topocomm.planning.forests.forest import forest_of
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.schedule.schedule import split_rows

OPTIMA = Path(__file__).parents[3] / "tests/data/forest_optima.json"
"""Written by forest_optima.py."""
ROWS = 1 << 20
HEADER = (
    f"{'collective':15} {'machines':>8} {'worst of optimum':>16} {'median':>7} {'most trees a root':>17} {'cpu s':>6} "
    f"{'worst':>6}"
)


def row(collective: str) -> str:
    """One line of the table: shares of the optimum that schedules reach, seconds per machine."""
    shares, trees, seconds = [], [], []
    for case in json.loads(OPTIMA.read_text()):
        share, most, cpu_s = reached(case, collective)
        shares.append(share)
        trees.append(most)
        seconds.append(cpu_s)
    return (
        f"{collective:15} {len(shares):8} {min(shares):16.4f} {median(shares):7.4f} {max(trees):17} "
        f"{median(seconds):6.3f} {max(seconds):6.3f}"
    )


def reached(case: dict[str, Any], collective: str) -> tuple[float, int, float]:
    """(share of the optimum, most trees a root, seconds of processors)."""
    topology = machine(case)
    ends, paths = topology.endpoints, PathFinder(topology)
    parts = tuple(rows for _, rows in split_rows(ROWS, len(ends))) if collective in IN_PARTS else ()
    found, took = timed(lambda: forest_of(Collective(collective, len(ends), 0, parts), paths, ends, ROWS))
    if found is None:
        return 0.0, 0, took.cpu_s
    gb_per_s = Cost(found.schedule, ends, paths, row_bytes=4).throughput_gb_per_s or 0.0
    return gb_per_s / case["optima"][collective], found.trees_per_root, took.cpu_s


def machine(case: dict[str, Any]) -> Topology:
    """GPUs first, then switches; links as [from, to, GB/s] by number."""
    devices = [Device(f"GPU{i}", "gpu") for i in range(case["ends"])]
    devices += [Device(f"switch{i}", "switch") for i in range(case["switches"])]
    links = tuple(Link(devices[a].id, devices[b].id, "nvlink", 1, rate, 0.5) for a, b, rate in case["links"])
    return Topology("random", "bench", tuple(devices), links)
