"""Which members of a host share a NIC, and in which turn each of them uses it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from topocomm.planning.routing.paths import PathFinder


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
