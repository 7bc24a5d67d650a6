"""Machines that the planner is measured on: those of the catalogue, whole or with a defect."""

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

    def topology(self) -> Topology:
        """The machine itself."""
        whole = catalog(self.system, hosts=self.hosts)
        if not self.defect:
            return whole
        made = DEFECTS[self.defect](whole)
        return Topology(f"{whole.name}, {self.defect}", "bench", made.devices, made.links)


def without(whole: Topology, gone: set[str]) -> Topology:
    """The machine without some devices."""
    devices = tuple(device for device in whole.devices if device.id not in gone)
    links = tuple(link for link in whole.links if link.src not in gone and link.dst not in gone)
    return Topology(whole.name, "bench", devices, links)


def cut(whole: Topology, a: str, b: str) -> Topology:
    """The machine without the links between two devices."""
    links = tuple(link for link in whole.links if {link.src, link.dst} != {a, b})
    return Topology(whole.name, "bench", whole.devices, links)


def changed(whole: Topology, change: Callable[[Link], Link]) -> Topology:
    """The machine with other links."""
    return Topology(whole.name, "bench", whole.devices, tuple(map(change, whole.links)))


def slow_gpu(whole: Topology, gpu: str, gb_per_s: float) -> Topology:
    """The machine with one GPU whose links have another rate, both ways."""
    return changed(whole, lambda link: link._replace(gb_per_s=gb_per_s) if gpu in (link.src, link.dst) else link)


def one_way(whole: Topology, src: str, dst: str, change: Callable[[Link], Link]) -> Topology:
    """The machine with another link from one device to another, not back."""
    return changed(whole, lambda link: change(link) if (link.src, link.dst) == (src, dst) else link)


def random_rates(whole: Topology) -> Topology:
    """Every link, either way for itself, at a random rate between half of its own and all of it."""
    chance = random.Random(1)
    return changed(whole, lambda link: link._replace(gb_per_s=(link.gb_per_s or 1.0) * chance.uniform(0.5, 1.0)))


def irregular_hosts(whole: Topology) -> Topology:
    """One host in a hundred, and at least one, lacks a GPU, or lacks a NIC, or has a GPU with slow links."""
    hosts = sorted(
        {device.host for device in whole.devices if device.kind == "gpu"}, key=lambda name: (len(name), name)
    )
    bad = hosts[len(hosts) // 2 % 50 :: round(1 / IRREGULAR_SHARE)]
    prefixes = {host: "" if len(hosts) == 1 else f"{host}/" for host in bad}
    lost = {f"{prefixes[host]}{('GPU', 'NIC')[turn % 3]}{turn % 8}" for turn, host in enumerate(bad) if turn % 3 < 2}
    slow = {f"{prefixes[host]}GPU{turn % 8}" for turn, host in enumerate(bad) if turn % 3 == 2}
    return changed(
        without(whole, lost), lambda link: link._replace(gb_per_s=200.0) if {link.src, link.dst} & slow else link
    )


DEFECTS: dict[str, Callable[[Topology], Topology]] = {
    "1% irregular hosts": irregular_hosts,
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
    "all rates random": random_rates,
}
