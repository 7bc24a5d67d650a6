"""Small machines for tests: figures that make expected costs easy to write down."""

from __future__ import annotations

from collections.abc import Sequence

from topocomm import Device, Link, Topology


def _both(a: str, b: str, gb_per_s: float, latency_us: float, gap_us: float | None = None) -> list[Link]:
    return [
        Link(src, dst, "nvlink", 1, gb_per_s, latency_us, gap_us, "table", "table") for src, dst in ((a, b), (b, a))
    ]


def switch(ranks: int, *, gb_per_s: float = 450.0, gap_us: float | None = None) -> Topology:
    """GPUs on one switch: every path 0.6 us."""
    devices = [Device(f"GPU{i}", "gpu") for i in range(ranks)] + [Device("switch", "switch")]
    links = [link for i in range(ranks) for link in _both(f"GPU{i}", "switch", gb_per_s, 0.3, gap_us)]
    return Topology(f"switch of {ranks}", "test", tuple(devices), tuple(links))


def hosts(count: int, gpus: int) -> Topology:
    """Hosts of GPUs on a switch (0.6 us, 450 GB/s), each GPU with a NIC on its rail (5.0 us, 50 GB/s)."""
    devices = [Device(f"rail{rail}", "switch", host="network") for rail in range(gpus)]
    links = []
    for host in range(count):
        name = f"h{host}"
        devices.append(Device(f"{name}/switch", "switch", host=name))
        for gpu in range(gpus):
            devices.append(Device(f"{name}/GPU{gpu}", "gpu", host=name))
            devices.append(Device(f"{name}/NIC{gpu}", "nic", host=name))
            links += _both(f"{name}/GPU{gpu}", f"{name}/switch", 450.0, 0.3)
            links += _both(f"{name}/GPU{gpu}", f"{name}/NIC{gpu}", 50.0, 1.0)
            links += _both(f"{name}/NIC{gpu}", f"rail{gpu}", 50.0, 1.5)
    return Topology(f"{count} hosts of {gpus}", "test", tuple(devices), tuple(links))


def sharing(
    count: int, gpus: int, nics: int, pairs: dict[tuple[int, int], float] | None = None, nic_gb_per_s: float = 12.5
) -> Topology:
    """Hosts of GPUs of which several share each NIC, behind 16 GB/s; without `pairs` (GB/s) on a switch of 150 GB/s."""
    devices = [Device(f"rail{nic}", "switch", host="network") for nic in range(nics)]
    devices += [Device("spine", "switch", host="network")]
    links = [link for nic in range(nics) for link in _both(f"rail{nic}", "spine", nic_gb_per_s * count, 0.5)]
    for host in range(count):
        name = f"h{host}"
        devices += [Device(f"{name}/GPU{gpu}", "gpu", host=name) for gpu in range(gpus)]
        devices += [Device(f"{name}/NIC{nic}", "nic", host=name) for nic in range(nics)]
        for gpu in range(gpus):
            links += _both(f"{name}/GPU{gpu}", f"{name}/NIC{gpu * nics // gpus}", 16.0, 1.0)
        for nic in range(nics):
            links += _both(f"{name}/NIC{nic}", f"rail{nic}", nic_gb_per_s, 1.5)
        if pairs is None:
            devices.append(Device(f"{name}/switch", "switch", host=name))
            for gpu in range(gpus):
                links += _both(f"{name}/GPU{gpu}", f"{name}/switch", 150.0, 0.3)
        for (a, b), rate in (pairs or {}).items():
            links += _both(f"{name}/GPU{a}", f"{name}/GPU{b}", rate, 0.7)
    return Topology(f"{count} hosts of {gpus} on {nics} NICs", "test", tuple(devices), tuple(links))


def line(ranks: int) -> Topology:
    """GPUs in a row with direct links only: 10 GB/s, 1 us; no path beyond the neighbour."""
    devices = [Device(f"GPU{i}", "gpu") for i in range(ranks)]
    links = [link for i in range(ranks - 1) for link in _both(f"GPU{i}", f"GPU{i + 1}", 10.0, 1.0)]
    return Topology(f"line of {ranks}", "test", tuple(devices), tuple(links))


def two_and_three() -> Topology:
    """GPU0 and GPU1 with links to GPU2, GPU3 and GPU4, of 10 GB/s and 1 us: no other pair has one."""
    devices = [Device(f"GPU{i}", "gpu") for i in range(5)]
    links = [link for a in (0, 1) for b in (2, 3, 4) for link in _both(f"GPU{a}", f"GPU{b}", 10.0, 1.0)]
    return Topology("two and three", "test", tuple(devices), tuple(links))


APART = [int(a != b and (a < 2) == (b < 2)) for a in range(5) for b in range(5)]
"""Rows from each rank of `two_and_three` to each: one for every pair without a link."""


def joined(sizes: Sequence[int]) -> Topology:
    """Hosts of that many CPUs, all on one network switch: every pair has a route; 2 us within a host, 20 us between."""
    devices = [Device("network", "switch", host="network")]
    links = []
    for host, count in enumerate(sizes):
        name = f"h{host}"
        devices.append(Device(f"{name}/memory", "numa", host=name))
        links += _both(f"{name}/memory", "network", 10.0, 9.0)
        for cpu in range(count):
            devices.append(Device(f"{name}/CPU{cpu}", "cpu", host=name))
            links += _both(f"{name}/CPU{cpu}", f"{name}/memory", 20.0, 1.0)
    return Topology(f"hosts of {sizes}", "test", tuple(devices), tuple(links))


def ways(ranks: int) -> dict[str, Topology | None]:
    """How ranks of one host can be made to exchange data: a topology that puts them on several keeps them apart."""
    two = [(ranks + 1) // 2, ranks // 2]
    return {"shared": None, "messages": joined([1] * ranks), "two levels": joined(two if ranks > 1 else [1])}
