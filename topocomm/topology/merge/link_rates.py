"""A topology with other rates on some of its links: what a faster or slower network would change."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches
from math import inf

from topocomm.errors import TopologyError
from topocomm.topology.merge.degradation import BOTH_WAYS, ONE_WAY, ends_of, ids_by_small_letters, meant_link
from topocomm.topology.model import Topology

MOST_NAMED = 8


def with_rates(topology: Topology, changes: Sequence[str]) -> Topology:
    """Return the topology with the rates of `LINK=GBPS` texts, the later ones last.

    LINK is `GPU3-NIC3` (both directions), `GPU0->GPU1` (one), a device (`rail3`: all its links), or a kind of links
    (`nvlink`, `network`: all of it). GBPS is 10^9 bytes per second in one direction. Parallel links of one pair of
    devices share the rate.

    Raises:
        TopologyError: A text is no change, its rate is not above 0, or nothing has its name.
    """
    links = list(topology.links)
    for change in changes:
        name, rate = _parsed(change)
        pairs = _pairs(topology, name, change)
        if isinstance(pairs, str):
            chosen = [number for number, link in enumerate(links) if link.kind == pairs]
        else:
            chosen = [number for number, link in enumerate(links) if (link.src, link.dst) in pairs]
        parallel: dict[tuple[str, str], int] = {}
        for number in chosen:
            ends = links[number].src, links[number].dst
            parallel[ends] = parallel.get(ends, 0) + 1
        for number in chosen:
            link = links[number]
            own = rate / parallel[link.src, link.dst]
            links[number] = link._replace(gb_per_s=own, gb_per_s_source="assumed")
    words = f" with {', '.join(changes)} GB/s" if changes else ""
    return replace(topology, name=f"{topology.name}{words}", links=tuple(links))


def _parsed(change: str) -> tuple[str, float]:
    name, mark, text = change.rpartition("=")
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not mark or not name or not 0 < rate < inf:
        meant = re.fullmatch(r"(.+?) *[=:] *([0-9]+(?:\.[0-9]+)?) *(G(B|iB)?(/s|ps)?)?", change, re.IGNORECASE)
        near = f"; did you mean {meant[1]}={meant[2]}?" if meant and float(meant[2]) else ""
        expected = "expected LINK=GBPS, GB/s above 0, as GPU0-NIC0=25 or network=100"
        raise TopologyError(f"what-if {change!r}: {expected}{near}")
    return name.strip(), rate


def _pairs(topology: Topology, name: str, change: str) -> set[tuple[str, str]] | str:
    """The directed links of a name, or the kind of links that it is."""
    joined = {(link.src, link.dst) for link in topology.links}
    ids = ids_by_small_letters(topology)
    if (device := ids.get(name.casefold())) is not None:
        own = {pair for pair in joined if device in pair}
        if own:
            return own
    for mark in (ONE_WAY, BOTH_WAYS):
        if (ends := ends_of(ids, name, mark)) is not None:
            own = joined & ({ends} if mark == ONE_WAY else {ends, ends[::-1]})
            if own:
                return own
    kinds = sorted({link.kind for link in topology.links})
    if name.casefold() in kinds:
        return name.casefold()
    links = {f"{link.src}-{link.dst}": frozenset(link[:2]) for link in topology.links}
    names = {known.casefold(): known for known in (*links, *topology.by_id, *kinds)}
    close = get_close_matches(name.casefold(), names, 2 * MOST_NAMED, 0.5)
    like = [names[known] for known in close] or links
    near: dict[object, str] = {}
    for known in like:  # of the two directions of a link the nearer one
        near.setdefault(links.get(known, known), known)
    raise TopologyError(
        f"what-if {change!r}: topology {topology.name!r} has no link, device or kind of links {name!r}; kinds are "
        f"{', '.join(kinds)}; near it: {', '.join([*near.values()][:MOST_NAMED])}{meant_link(ids, name)}"
    )
