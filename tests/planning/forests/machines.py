"""Machines for packed trees: those with known optima, catalogue ones, and ones with a defect."""

import json
from functools import cache
from pathlib import Path

from topocomm import Device, Link, Topology
from topocomm.planning.collectives import IN_PARTS, Collective
from topocomm.planning.forests.forest import forest_of
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.schedule.schedule import split_rows

OPTIMA = Path(__file__).parents[2] / "data" / "forest_optima.json"
"""Written by tools/bench/forest_optima.py, which shares no code with the planner and solves by HiGHS."""


@cache
def solved():
    """(topology, optimum by collective) of every random machine."""
    return [(_topology(case), case["optima"]) for case in json.loads(OPTIMA.read_text())]


def _topology(case):
    names = [f"GPU{i}" for i in range(case["ends"])] + [f"switch{i}" for i in range(case["switches"])]
    devices = tuple(Device(name, "gpu" if name.startswith("GPU") else "switch") for name in names)
    links = tuple(Link(names[a], names[b], "nvlink", 1, rate, 0.5) for a, b, rate in case["links"])
    return Topology("random", "test", devices, links)


def without(topology, *pairs):
    """The machine without the links between pairs of devices."""
    gone = {*pairs, *((b, a) for a, b in pairs)}
    links = tuple(link for link in topology.links if (link.src, link.dst) not in gone)
    return Topology(topology.name, "test", topology.devices, links)


def less(topology, gone):
    """The machine without one device."""
    devices = tuple(device for device in topology.devices if device.id != gone)
    links = tuple(link for link in topology.links if gone not in (link.src, link.dst))
    return Topology(topology.name, "test", devices, links)


def slower(topology, src, dst, rate):
    """The machine with one directed link at another rate."""
    links = tuple(
        link._replace(gb_per_s=rate) if (link.src, link.dst) == (src, dst) else link for link in topology.links
    )
    return Topology(topology.name, "test", topology.devices, links)


def request(topology, name, rows, *, root=0, parts=None):
    """(collective, paths, endpoints) of one request."""
    ends = topology.endpoints
    if name in IN_PARTS and parts is None:
        parts = [size for _, size in split_rows(rows, len(ends))]
    return Collective(name, len(ends), root, tuple(parts or ())), PathFinder(topology), ends


def forest(topology, name, rows=1 << 20, *, root=0, parts=None, **options):
    """The packed trees of one request."""
    collective, paths, ends = request(topology, name, rows, root=root, parts=parts)
    return forest_of(collective, paths, ends, rows, **options)
