"""A topology without some of its links, as when a cable, a NIC or a rail is down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches

from topocomm.errors import TopologyError
from topocomm.topology.model import Topology

ONE_WAY = "->"
BOTH_WAYS = "-"
OTHER_MARKS = ("<->", "--", "=>", ":", "_", "/", ",", "|", " ")


def without(topology: Topology, names: Sequence[str]) -> Topology:
    """Return the topology without some links; all devices stay, so that ranks keep their places.

    Names are `GPU3-NIC3` (both directions), `GPU0->GPU1` (one direction), or a device (`rail3`: all its links). An id
    may contain `-`.

    Raises:
        TopologyError: A name is neither link nor device; the message has the nearest names.
    """
    ids = ids_by_small_letters(topology)
    joined = dict.fromkeys((link.src, link.dst) for link in topology.links)
    removed: set[tuple[str, str]] = set()
    for name in names:
        if (device := ids.get(name.casefold())) is not None:
            own = {pair for pair in joined if device in pair}
            if not own:
                raise TopologyError(f"without {name!r}: the device has no link in topology {topology.name!r}")
            removed |= own
            continue
        one_way = ends_of(ids, name, ONE_WAY)
        ends = one_way or ends_of(ids, name, BOTH_WAYS)
        if ends is None:
            words = [word.strip() for word in name.split(ONE_WAY if ONE_WAY in name else BOTH_WAYS)]
            near = dict.fromkeys(match for word in words for match in get_close_matches(word, ids.values(), 3, 0.4))
            near_words = f"near it: {', '.join(near)}" if near else f"devices are {', '.join([*ids.values()][:8])}, ..."
            raise TopologyError(
                f"without {name!r}: neither a device of topology {topology.name!r} nor two of them as A-B or A->B; "
                f"{near_words}{meant_link(ids, name)}"
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


def ids_by_small_letters(topology: Topology) -> dict[str, str]:
    """Return the ids of devices by what names in any case are compared by."""
    return {device.id.casefold(): device.id for device in topology.devices}


def ends_of(ids: dict[str, str], name: str, mark: str) -> tuple[str, str] | None:
    """Return the two devices of `A<mark>B`, at the first mark with a device on each side; None without."""
    small = name.casefold()
    cuts = (at for at in range(len(small)) if small.startswith(mark, at))
    ends = ((ids.get(small[:at].strip()), ids.get(small[at + len(mark) :].strip())) for at in cuts)
    return next(((a, b) for a, b in ends if a is not None and b is not None), None)


def meant_link(ids: dict[str, str], name: str) -> str:
    """Return the link that two devices with another mark between them mean, to end an error with."""
    ends = next((found for mark in OTHER_MARKS if (found := ends_of(ids, name, mark))), None)
    return f"; did you mean {ends[0]}-{ends[1]}?" if ends else ""
