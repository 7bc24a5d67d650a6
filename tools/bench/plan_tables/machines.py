"""Machines on which the planner is measured: catalogue systems, whole or with a defect."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

from topocomm import Link, Topology, catalog

IRREGULAR_SHARE = 0.01


class Machine(NamedTuple):
    """Hosts of one system of the catalogue, and the name of what is wrong with them."""

    system: str
    hosts: int = 1
    defect: str = ""

    def __str__(self) -> str:
        many = f"{self.system} x {self.hosts}" if self.hosts > 1 else self.system
        return f"{many}, {self.defect}" if self.defect else many

    def topology(self) -> Topology:
        """The machine itself."""
        whole = catalog(self.system, hosts=self.hosts)
        made = DEFECTS[self.defect](whole) if self.defect else whole
        return Topology(str(self), made.source, made.devices, made.links, whole.pairs if made is whole else ())


def without(whole: Topology, gone: set[str]) -> Topology:
    """Return the machine without some devices."""
    devices = tuple(device for device in whole.devices if device.id not in gone)
    links = tuple(link for link in whole.links if link.src not in gone and link.dst not in gone)
    return Topology(whole.name, "bench", devices, links)


def cut(whole: Topology, a: str, b: str) -> Topology:
    """Return the machine without the links between two devices."""
    links = tuple(link for link in whole.links if {link.src, link.dst} != {a, b})
    return Topology(whole.name, "bench", whole.devices, links)


def changed(whole: Topology, change: Callable[[Link], Link]) -> Topology:
    """Return the machine with other links."""
    return Topology(whole.name, "bench", whole.devices, tuple(map(change, whole.links)))


def slow_gpu(whole: Topology, gpu: str, gb_per_s: float) -> Topology:
    """The machine with one GPU whose links have another rate, both ways."""
    return changed(whole, lambda link: link._replace(gb_per_s=gb_per_s) if gpu in (link.src, link.dst) else link)


def one_way(whole: Topology, src: str, dst: str, change: Callable[[Link], Link]) -> Topology:
    """The machine with another link from one device to another, not back."""
    return changed(whole, lambda link: change(link) if (link.src, link.dst) == (src, dst) else link)


def random_rates(whole: Topology, *, alike: bool) -> Topology:
    """Every link at a random rate between half of its own and all of it; `alike`: the same both ways."""
    chance = random.Random(1)
    shares: dict[tuple[str, str], float] = {}

    def rated(link: Link) -> Link:
        ends = (min(link.src, link.dst), max(link.src, link.dst)) if alike else (link.src, link.dst)
        share = shares.setdefault(ends, chance.uniform(0.5, 1.0))
        return link._replace(gb_per_s=(link.gb_per_s or 1.0) * share)

    return changed(whole, rated)


def irregular_hosts(whole: Topology) -> list[str]:
    """Return id prefixes of one host in a hundred, at least one."""
    count = len({device.host for device in whole.devices if device.kind == "gpu"})
    return [f"h{host}/" for host in range(count // 2 % 50, count, round(1 / IRREGULAR_SHARE))] if count > 1 else [""]


def uneven_hosts(whole: Topology) -> Topology:
    """Of the irregular hosts every other lacks a GPU, and the rest have one with slow links."""
    bad = irregular_hosts(whole)
    slow = {f"{host}GPU{turn % 8}" for turn, host in enumerate(bad) if turn % 2}
    left = without(whole, {f"{host}GPU{turn % 8}" for turn, host in enumerate(bad) if not turn % 2})
    return changed(left, lambda link: link._replace(gb_per_s=200.0) if {link.src, link.dst} & slow else link)


def hosts_without_nic(whole: Topology) -> Topology:
    """The irregular hosts lack a NIC."""
    return without(whole, {f"{host}NIC{turn % 8}" for turn, host in enumerate(irregular_hosts(whole))})


DEFECTS: dict[str, Callable[[Topology], Topology]] = {
    "1% of hosts uneven": uneven_hosts,
    "1% of hosts lack a NIC": hosts_without_nic,
    "rail 3 of h2 down": lambda whole: cut(whole, "h2/NIC3", "rail3"),
    "h1/GPU2 at 200 GB/s": lambda whole: slow_gpu(whole, "h1/GPU2", 200.0),
    "no h3/GPU7": lambda whole: without(whole, {"h3/GPU7"}),
    "h0/NIC0 sends at 25 GB/s": lambda whole: one_way(
        whole, "h0/NIC0", "rail0", lambda link: link._replace(gb_per_s=25.0)
    ),
    "h0/NIC0 sends 3 us later": lambda whole: one_way(
        whole, "h0/NIC0", "rail0", lambda link: link._replace(latency_us=4.5)
    ),
    "no GPU0-GPU1": lambda whole: cut(whole, "GPU0", "GPU1"),
    "no h2/GPU0-GPU1": lambda whole: cut(whole, "h2/GPU0", "h2/GPU1"),
    "all rates random": lambda whole: random_rates(whole, alike=True),
    "all rates random each way": lambda whole: random_rates(whole, alike=False),
}
