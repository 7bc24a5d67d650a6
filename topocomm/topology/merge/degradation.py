"""A topology without some of its links: what is left of a machine when a cable, a NIC or a rail is down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches

from topocomm.errors import TopologyError
from topocomm.topology.model import Topology

ONE_WAY = "->"
BOTH_WAYS = "-"


def without(topology: Topology, names: Sequence[str]) -> Topology:
    """The topology without the links named.

    A name is `GPU3-NIC3` (the links between two devices, both directions), `GPU0->GPU1` (one direction), or a device
    (`h2/NIC3`, `rail3`: all its links). All devices stay, so ranks keep their places. An id may hold a `-` itself.

    Args:
        topology: The whole machine.
        names: Each a link or a device, at least one.

    Raises:
        TopologyError: A name is neither, or it names devices that no link joins; the message has the nearest names.
    """
    gone: set[tuple[str, str]] = set()
    for name in names:
        gone.update(_links(topology, name))
    return replace(
        topology,
        name=f"{topology.name} without {', '.join(names)}",
        links=tuple(link for link in topology.links if (link.src, link.dst) not in gone),
    )


def _links(topology: Topology, name: str) -> list[tuple[str, str]]:
    """(source, destination) of the links that a name means."""
    joined = dict.fromkeys((link.src, link.dst) for link in topology.links)
    if name in topology.by_id:
        found = [pair for pair in joined if name in pair]
        if not found:
            raise TopologyError(f"without {name!r}: the device has no link in topology {topology.name!r}")
        return found
    ends = _ends(topology, name, ONE_WAY)
    both = ends is None
    ends = _ends(topology, name, BOTH_WAYS) if ends is None else ends
    if ends is None:
        raise TopologyError(
            f"without {name!r}: neither a device of topology {topology.name!r} nor two of them as A-B or A->B; "
            f"{_nearest(topology, name)}"
        )
    wanted = [ends, ends[::-1]] if both else [ends]
    found = [pair for pair in wanted if pair in joined]
    if not found:
        peers = [dst for src, dst in joined if src == ends[0]]
        known = f"{ends[0]} is linked to {', '.join(peers[:8])}" if peers else f"{ends[0]} has no link"
        raise TopologyError(f"without {name!r}: no link joins {ends[0]} and {ends[1]}; {known}")
    return found


def _ends(topology: Topology, name: str, mark: str) -> tuple[str, str] | None:
    """The two devices of `A<mark>B`: wherever the mark stands in the name, both sides must be devices."""
    at = name.find(mark)
    while at >= 0:
        a, b = name[:at].strip(), name[at + len(mark) :].strip()
        if a in topology.by_id and b in topology.by_id:
            return a, b
        at = name.find(mark, at + 1)
    return None


def _nearest(topology: Topology, name: str) -> str:
    """Devices, or links where the name has a mark, that are spelled like it."""
    ids = [device.id for device in topology.devices]
    mark = ONE_WAY if ONE_WAY in name else BOTH_WAYS
    words = [word.strip() for word in name.split(mark)] if mark in name else [name]
    near = [match for word in words for match in get_close_matches(word, ids, 3, 0.4)]
    return f"near it: {', '.join(dict.fromkeys(near))}" if near else f"devices are {', '.join(ids[:8])}, ..."
