"""Quality of plans, their gap to the bound, and planning time.

    python tools/bench/planner.py [--tables time,latency,collectives,throughput,irregular,random] [--hosts 1,2,4]

Every row is planned in a process of its own, after importing topocomm and making the machine: nothing is planned or
cached before. "s" are seconds on the clock, "cpu s" seconds of processors, which count where others use the machine.
All times of plans and all GB/s are those of the cost models. Hosts have 8 GPUs, 0.6 us apart inside and 5.0 us on the
own rail; "known" are the best times that we know of for such hosts. Bounds are those printed with the plan, derived
again from their witness up to 1,024 ranks. "next best" is the best of the other algorithms that were planned.

Throughput: "algorithm" is the plan's; then its packed trees, whose share is that of the bound of packings (the same
for a sum on the catalogue's machines); then what libraries run, on the same machine and by the same model: one ring in
rank order; as many rings as a host has GPUs, on rails of their own (up to 128 ranks; NCCL, which looks for better
ones where a host has no switch); recursive halving and doubling in rank order (MPI); one pair of trees in rank order
(NCCL runs several, on rails of their own).
"""

from __future__ import annotations

import argparse
import os
import platform
from collections.abc import Callable, Iterable

import numpy as np
from plan_tables import latency, planning_time, random_graphs, throughput
from plan_tables.fresh import each_alone
from plan_tables.machines import Machine

from topocomm.command_parser import CommandParser
from topocomm.planning.collectives import COLLECTIVES
from topocomm.planning.forests.forest import COLLECTIVES as PACKED
from topocomm.topology.catalog.systems import SYSTEMS

TIME_HOSTS = (1, 16, 128, 2048)
LATENCY_HOSTS = (1, 2, 4, 8, 16, 64, 128, 2048)
THROUGHPUT_HOSTS = (1, 2, 4, 16)
IRREGULAR_LATENCY = (
    Machine("dgx-1-v100", 1, "no GPU0-GPU1"),
    Machine("mi250x", 1, "no GPU0-GPU1"),
    Machine("dgx-h100", 2, "h0/NIC0 sends 3 us later"),
    Machine("dgx-h100", 4, "rail 3 of h2 down"),
    Machine("dgx-h100", 4, "no h3/GPU7"),
    Machine("dgx-h100", 16, "rail 3 of h2 down"),
    Machine("dgx-h100", 16, "no h3/GPU7"),
)
IRREGULAR_THROUGHPUT = (
    Machine("dgx-h100", 4, "rail 3 of h2 down"),
    Machine("dgx-h100", 4, "h1/GPU2 at 200 GB/s"),
    Machine("dgx-h100", 4, "no h3/GPU7"),
    Machine("dgx-h100", 4, "h0/NIC0 sends at 25 GB/s"),
    Machine("dgx-h100", 4, "all rates random"),
    Machine("dgx-h100", 4, "all rates random each way"),
    Machine("dgx-h100", 16, "rail 3 of h2 down"),
    Machine("dgx-h100", 16, "h1/GPU2 at 200 GB/s"),
    Machine("dgx-h100", 16, "no h3/GPU7"),
    Machine("dgx-h100", 16, "all rates random"),
    Machine("dgx-h100", 16, "all rates random each way"),
    Machine("mi300x-8", 16, "rail 3 of h2 down"),
    Machine("mi300x-8", 16, "all rates random"),
    Machine("dgx-1-v100", 16, "no h2/GPU0-GPU1"),
)


def show(title: str, header: str, rows: Iterable[str]) -> None:
    """Print one table, row by row as they are measured."""
    print(f"\n{title}\n{header}")
    for row in rows:
        print(row, flush=True)


def times(asked: argparse.Namespace) -> None:
    machines = [
        Machine("dgx-h100", hosts, defect)
        for defect in ("", *planning_time.DEFECTS)
        for hosts in asked.hosts or TIME_HOSTS
        if hosts > 1 or "NIC" not in defect
    ]
    rows = (planning_time.row(machine, asked.repeats) for machine in machines)
    show(f"time to plan an allreduce for latency, medians of {asked.repeats}", planning_time.HEADER, rows)


def latencies(asked: argparse.Namespace) -> None:
    machines = [*(Machine("dgx-h100", hosts) for hosts in asked.hosts or LATENCY_HOSTS), *IRREGULAR_LATENCY]
    show("least latency", latency.HEADER, each_alone(latency.row, [(machine, "allreduce") for machine in machines]))


def collectives(_: argparse.Namespace) -> None:
    jobs = [(Machine(system), collective) for system in SYSTEMS for collective in COLLECTIVES]
    show("least latency of every collective", latency.HEADER, each_alone(latency.row, jobs))


def throughputs(asked: argparse.Namespace) -> None:
    machines = [Machine(system, hosts) for system in SYSTEMS for hosts in asked.hosts or THROUGHPUT_HOSTS]
    jobs = [(machine, asked.collective, asked.ordered) for machine in machines]
    show(f"most bytes a second, {asked.collective}", throughput.HEADER, each_alone(throughput.row, jobs))


def irregular(asked: argparse.Namespace) -> None:
    jobs = [(machine, asked.collective, asked.ordered) for machine in IRREGULAR_THROUGHPUT]
    title = f"most bytes a second, {asked.collective}, machines with a defect"
    show(title, throughput.HEADER, each_alone(throughput.row, jobs))


def random_machines(_: argparse.Namespace) -> None:
    rows = each_alone(random_graphs.row, [(collective,) for collective in PACKED])
    show("trees on random machines of 4 to 8 GPUs beside the joint linear program", random_graphs.HEADER, rows)


TABLES: dict[str, Callable[[argparse.Namespace], None]] = {
    "time": times,
    "latency": latencies,
    "collectives": collectives,
    "throughput": throughputs,
    "irregular": irregular,
    "random": random_machines,
}


def main() -> None:
    """Print the tables."""
    parser = CommandParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", default=",".join(TABLES), help="which, in this order")
    parser.add_argument("--hosts", help="hosts of the machines of the first, second and fourth, such as 1,2,4,16")
    parser.add_argument("--collective", default="allreduce", choices=PACKED, help="of the tables of throughput")
    parser.add_argument("--ordered", action="store_true", help="throughput for an operator that does not commute")
    parser.add_argument("--repeats", type=int, default=3, help="of every row of the first table")
    asked = parser.parse_args()
    asked.hosts = [int(count) for count in asked.hosts.split(",")] if asked.hosts else []
    unknown = [name for name in asked.tables.split(",") if name not in TABLES]
    if unknown:
        parser.error(f"--tables {unknown[0]!r}: expected some of {', '.join(TABLES)}")
    print(
        f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}; "
        f"{platform.system()}, Python {platform.python_version()}, NumPy {np.__version__}"
    )
    for name in asked.tables.split(","):
        TABLES[name](asked)


if __name__ == "__main__":
    main()
