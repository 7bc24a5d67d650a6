"""A table of throughput plans on the catalogue's machines, and on irregular ones: GB/s, bound, trees and seconds.

$ python tools/bench/throughput.py [--collective allreduce] [--hosts 1,2,4,16] [--ordered]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

import topocomm
from topocomm.planning.collectives import IN_PARTS, Collective
from topocomm.planning.cost import cost_of
from topocomm.planning.forests.forest import forest_of
from topocomm.planning.paths import PathFinder
from topocomm.planning.schedule import split_rows
from topocomm.topology.catalog import SYSTEMS, catalog
from topocomm.topology.model import Link, Topology

ROWS = 1 << 20


def without(topology: Topology, name: str, pairs: list[tuple[str, str]], rate: float = 0.0) -> Topology:
    """The machine with links between the pairs cut, or slowed to a rate in GB/s."""
    both = {*pairs, *((b, a) for a, b in pairs)}
    links: list[Link] = []
    for link in topology.links:
        if (link.src, link.dst) not in both:
            links.append(link)
        elif rate:
            links.append(link._replace(gb_per_s=rate))
    return Topology(f"{topology.name}, {name}", "bench", topology.devices, tuple(links))


def less(topology: Topology, gone: str) -> Topology:
    """The machine without one device."""
    devices = tuple(device for device in topology.devices if device.id != gone)
    links = tuple(link for link in topology.links if gone not in (link.src, link.dst))
    return Topology(f"{topology.name}, no {gone}", "bench", devices, links)


def irregular() -> Iterator[Topology]:
    """Machines with a defect."""
    for hosts in (4, 16):
        machine = catalog("dgx-h100", hosts=hosts)
        yield without(machine, "rail 3 of h2 down", [("h2/NIC3", "rail3")])
        yield without(machine, "h1/GPU2 at 200 GB/s", [("h1/GPU2", "h1/nvswitch0")], 200.0)
        yield less(machine, "h3/GPU7")
    machine = catalog("dgx-h100", hosts=4)
    one_way = [link._replace(gb_per_s=25.0) if link.src == "h0/NIC0" else link for link in machine.links]
    yield Topology("dgx-h100 x 4, h0/NIC0 sends at 25 GB/s", "bench", machine.devices, tuple(one_way))
    yield without(catalog("mi300x-8", hosts=16), "rail 3 of h2 down", [("h2/NIC3", "rail3")])
    yield without(catalog("dgx-1-v100", hosts=16), "h2/GPU0-GPU1 cut", [("h2/GPU0", "h2/GPU1")])


def print_throughput(machines: list[Topology], collective: str, *, commutative: bool = True) -> None:
    """One line per machine: the GB/s are those of the schedule, by the cost model; the bound is the packing's."""
    columns = f"{'GPUs':>4} {'GB/s':>8} {'bound':>8} {'ratio':>7} {'trees/root':>10} {'height':>6} {'seconds':>7}"
    print(f"{collective:45} {columns}")
    for machine in machines:
        paths, ends = PathFinder(machine), machine.endpoints
        parts = tuple(rows for _, rows in split_rows(ROWS, len(ends))) if collective in IN_PARTS else ()
        begun = time.perf_counter()
        found = forest_of(Collective(collective, len(ends), 0, parts), paths, ends, ROWS, commutative=commutative)
        took = time.perf_counter() - begun
        if found is None:
            print(f"{machine.name:45} {len(ends):4} does not fit{'':44} {took:7.2f}")
            continue
        reached = cost_of(found.schedule, ends, paths, row_bytes=4).throughput_gb_per_s or 0.0
        bound = found.bound_gb_per_s
        print(
            f"{machine.name:45} {len(ends):4} {reached:8.2f} {bound:8.2f} {reached / bound:7.4f} "
            f"{found.trees_per_root:10} {found.height:6} {took:7.2f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--collective", default="allreduce")
    parser.add_argument("--hosts", default="1,2,4,16", help="hosts of every catalogue machine; 0 for none of them")
    parser.add_argument("--irregular", action="store_true", help="also machines with a defect")
    parser.add_argument("--ordered", action="store_true", help="an operator that does not commute")
    asked = parser.parse_args()
    counts = [int(count) for count in asked.hosts.split(",")]
    machines = [topocomm.catalog(name, hosts=count) for name in SYSTEMS for count in counts if count]
    machines += list(irregular()) if asked.irregular else []
    print_throughput(machines, asked.collective, commutative=not asked.ordered)


if __name__ == "__main__":
    main()
