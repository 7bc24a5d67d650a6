"""Which member of a group relays what goes to another, where two routes take less than one; and who share a NIC."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.routing.routes import Floats, Ints

NO_RELAY = -1
"""Relay of what goes straight."""
FASTER = 2.1
"""How many times as fast as the direct route two are, one after the other, that take less of the ports' time."""


def member_relays(endpoints: Sequence[str], paths: PathFinder) -> tuple[Ints, Floats]:
    """Return (the relay from each member to each, what a unit takes from each to each), both [members, members].

    A relay is taken where each of its two routes is `FASTER` than the direct one; relays share what they carry.
    """
    count = len(endpoints)
    a, b = (x.ravel() for x in np.nonzero(~np.eye(count, dtype=bool)))
    time, relays = np.zeros((count, count)), np.full((count, count), NO_RELAY)
    rates = paths.routes(endpoints, a, b).gb_per_s
    time[a, b] = np.divide(1.0, rates, out=np.full(len(rates), np.inf), where=rates > 0)
    carried = np.zeros(count)
    for src, dst in zip(a.tolist(), b.tolist(), strict=True):
        both = time[src] + time[:, dst]
        fast: NDArray[np.bool_] = FASTER * np.maximum(time[src], time[:, dst]) <= time[src, dst]
        fast &= np.isfinite(both)
        fast[[src, dst]] = False
        if fast.any():
            relay = relays[src, dst] = int(np.where(fast, both + carried, np.inf).argmin())
            carried[relay] += both[relay]
    return relays, time


def nic_turns(endpoints: Sequence[str], starts: Sequence[int], paths: PathFinder) -> list[int]:
    """Return for each member of a host which of those that share its NIC it is; [0] where hosts have unlike sizes.

    `endpoints` stand host by host, `starts` has the first of each host and their number.
    """
    size = starts[1]
    if len(starts) < 3 or any(high - low != size for low, high in pairwise(starts)):
        return [0]
    members, far = np.arange(size), np.full(size, size)
    routes = paths.routes(endpoints, members, far)
    turns, users = list[int](), Counter[int]()
    for low, high in pairwise(routes.starts.tolist()):
        nics = paths.link_nics[routes.links[low:high]]
        nic = int(nics[nics >= 0][0]) if (nics >= 0).any() else -1 - len(turns)
        turns.append(users[nic])
        users[nic] += 1
    return turns
