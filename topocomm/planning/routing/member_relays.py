"""Which member of a group relays what goes from one to another, where two fast routes take less than the direct one."""

from __future__ import annotations

from collections.abc import Sequence

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
