"""How good plans are, how far they can be from the optimum, and how long planning takes.

    python tools/bench/planner.py [--hosts 2,4,8,16,64,2048]

Hosts have 8 GPUs, 0.6 us apart inside and 5.0 us on the own rail; "known" are the best times that we know of for such
hosts. "bound" is the one printed with the plan, derived again from its witness up to 1,024 ranks.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Callable

import topocomm
from topocomm.planning.collectives import COLLECTIVES

BEST_KNOWN_US = {1: 1.8, 2: 6.8, 4: 8.0, 8: 8.6, 16: 13.6, 64: 15.4, 2048: 28.4}
SYSTEMS = ("dgx-1-v100", "dgx-a100", "dgx-h100", "mi250x", "mi300x-8", "rtx4090-pcie-8", "cpu-2-socket")
MOST_CHECKED_RANKS = 1024


def timed(make: Callable[[], topocomm.Plan]) -> tuple[topocomm.Plan, float]:
    """A plan and the seconds that it took."""
    begin = time.perf_counter()
    plan = make()
    return plan, time.perf_counter() - begin


def row(name: str, topology: topocomm.Topology, collective: str, best_us: float | None = None) -> str:
    """One line about the plan for least latency."""
    plan, seconds = timed(lambda: topocomm.plan(topology, collective, payload_bytes=0, objective="latency"))
    if len(plan.ranks) <= MOST_CHECKED_RANKS:
        topocomm.check_certificate(topology, plan)
    us, bound_us = plan.figures.alpha_us, plan.certificate.alpha_lower_bound_us
    known = "" if best_us is None else f"{best_us:.1f}"
    ratio = "" if best_us is None else f"{us / best_us:.3f}"
    return (
        f"{name:24} {collective:15} {len(plan.ranks):6} {plan.algorithm:20} {plan.rounds:6} {us:8.2f} {known:>6} "
        f"{ratio:>6} {bound_us:8.2f} {plan.certificate.gap:6.3f} {seconds:8.3f}"
    )


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", default="1,2,4,8,16,64,128,2048", help="numbers of hosts of the latency table")
    arguments = parser.parse_args()
    counts = [int(part) for part in arguments.hosts.split(",")]
    print(
        f"{'machine':24} {'collective':15} {'ranks':>6} {'algorithm':20} {'rounds':>6} {'us':>8} {'known':>6} "
        f"{'ratio':>6} {'bound':>8} {'gap':>6} {'s':>8}"
    )
    for count in counts:
        topology = topocomm.catalog("dgx-h100", hosts=count)
        print(row(topology.name, topology, "allreduce", BEST_KNOWN_US.get(count)), flush=True)
    for system in SYSTEMS:
        topology = topocomm.catalog(system)
        for collective in COLLECTIVES:
            print(row(topology.name, topology, collective), flush=True)
    print(f"largest resident set: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
