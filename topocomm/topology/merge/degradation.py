"""A topology without some of its links, as when a cable, a NIC or a rail is down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches

from topocomm.errors import TopologyError
from topocomm.topology.model import Topology

ONE_WAY = "->"
BOTH_WAYS = "-"


def without(topology: Topology, names: Sequence[str]) -> Topology:
    """Return the topology without some links; all devices stay, so that ranks keep their places.

    Names are `GPU3-NIC3` (both directions), `GPU0->GPU1` (one direction), or a device (`rail3`: all its links). An id
    may contain `-`.

    Raises:
        TopologyError: A name is neither link nor device; the message has the nearest names.
    """
    joined = dict.fromkeys((link.src, link.dst) for link in topology.links)
    removed: set[tuple[str, str]] = set()
    for name in names:
        if name in topology.by_id:
            own = {pair for pair in joined if name in pair}
            if not own:
                raise TopologyError(f"without {name!r}: the device has no link in topology {topology.name!r}")
            removed |= own
            continue
        one_way = _ends(topology, name, ONE_WAY)
        ends = one_way or _ends(topology, name, BOTH_WAYS)
        if ends is None:
            ids = [device.id for device in topology.devices]
            words = [word.strip() for word in name.split(ONE_WAY if ONE_WAY in name else BOTH_WAYS)]
            near = dict.fromkeys(match for word in words for match in get_close_matches(word, ids, 3, 0.4))
            near_words = f"near it: {', '.join(near)}" if near else f"devices are {', '.join(ids[:8])}, ..."
            raise TopologyError(
                f"without {name!r}: neither a device of topology {topology.name!r} nor two of them as A-B or A->B; "
                f"{near_words}"
            )
        named = [pair for pair in ([ends] if one_way else [ends, ends[::-1]]) if pair in joined]
        if not named:
            peers = [dst for src, dst in joined if src == ends[0]]
            known = f"{ends[0]} is linked to {', '.join(peers[:8])}" if peers else f"{ends[0]} has no link"
            raise TopologyError(f"without {name!r}: no link joins {ends[0]} and {ends[1]}; {known}")
        removed |= set(named)
    return replace(
        topology,
        name=f"{topology.name} without {', '.join(names)}",
        links=tuple(link for link in topology.links if (link.src, link.dst) not in removed),
    )


def _ends(topology: Topology, name: str, mark: str) -> tuple[str, str] | None:
    """The two devices of `A<mark>B`, at the first mark with a device on each side."""
    cuts = (at for at in range(len(name)) if name.startswith(mark, at))
    ends = ((name[:at].strip(), name[at + len(mark) :].strip()) for at in cuts)
    return next(((a, b) for a, b in ends if a in topology.by_id and b in topology.by_id), None)
