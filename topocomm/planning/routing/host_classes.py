"""Classes of hosts that look alike, so that a cluster of thousands of hosts is searched as if it had a few.

The *network* is every device whose host has no endpoint (switches that join hosts). The other devices fall in *groups*:
the hosts, but hosts with direct links between them are one group. Two groups are of one *class* if exchanging them
changes no path: the same devices in the order of their ids, the same links with the same figures, and the same links to
the same network devices. The *place* of a device is its number in the order of the group's ids. Ids decide between
paths that are otherwise equal, so the position of a group's ids among those of the network is part of its class.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from topocomm.planning.routing.routes import Edge, Figures, Ints
from topocomm.topology.model import ENDPOINT_KINDS, Topology

NETWORK = -1
"""The group of the network's devices."""


@dataclass(frozen=True, eq=False)
class HostClasses:
    """The groups and classes of one topology.

    Attributes:
        ids: Device ids, in the topology's order; "device" means an index into them.
        index: The device of each id.
        is_end: bool [devices]: whether the device is an endpoint.
        group: int64 [devices]: the group, `NETWORK` for the network's.
        place: int64 [devices]: the place in the group, or in the network.
        members: int64 [devices]: the devices by group, the network's first, and in a group by place.
        member_start: int64 [groups + 2]: the devices of group g are members[member_start[g + 1]:member_start[g + 2]].
        class_of: int64 [groups]: the class of each group.
        first: The lowest group of each class.
        links: int64 [links]: link numbers (the order of the edges) by group, the network's own first; in every group
            of a class the same link stands at the same position.
        link_start: int64 [groups + 2]: as `member_start`, for `links`.
    """

    ids: tuple[str, ...]
    index: dict[str, int]
    is_end: NDArray[np.bool_]
    group: Ints
    place: Ints
    members: Ints
    member_start: Ints
    class_of: Ints
    first: tuple[int, ...]
    links: Ints
    link_start: Ints

    @cached_property
    def alike(self) -> Ints:
        """int64 [devices]: equal for endpoints of one class and place, counted from 0; -1 for other devices."""
        ends = np.flatnonzero(self.is_end)
        width = int(self.place.max(initial=0)) + 1
        alike = np.full(len(self.ids), -1, dtype=np.int64)
        code = self.class_of[self.group[ends]] * width + self.place[ends]
        alike[ends] = np.unique(code, return_inverse=True)[1]
        return alike

    def id_at(self, group: int, place: int) -> str:
        """Return the device id at a place of a group, or of the `NETWORK`."""
        return self.ids[int(self.members[self.member_start[group + 1] + place])]

    def links_of(self, group: int) -> list[int]:
        """Return the link numbers of a group, inside and with the network; of `NETWORK`, of the network alone."""
        low, high = self.link_start[group + 1 : group + 3].tolist()
        numbers: list[int] = self.links[low:high].tolist()
        return numbers


def host_classes(topology: Topology, links: Mapping[Edge, Figures]) -> HostClasses:
    """Return the groups and classes of a topology, given the figures of its directed links."""
    ids = tuple(device.id for device in topology.devices)
    index = {name: device for device, name in enumerate(ids)}
    is_end = np.array([device.kind in ENDPOINT_KINDS for device in topology.devices], dtype=bool)
    src = np.array([index[a] for a, _ in links], dtype=np.int64)
    dst = np.array([index[b] for _, b in links], dtype=np.int64)
    group = _groups(topology, src, dst)
    blocks = np.arange(NETWORK, int(group.max(initial=NETWORK)) + 2)
    by_id = np.array(sorted(range(len(ids)), key=ids.__getitem__), dtype=np.int64)
    members = by_id[np.argsort(group[by_id], kind="stable")]
    member_start = np.searchsorted(group[members], blocks)
    place = np.empty(len(ids), dtype=np.int64)
    place[members] = np.arange(len(ids)) - member_start[group[members] + 1]
    owner = np.maximum(group[src], group[dst])
    code = np.where(group == NETWORK, -1 - place, place)
    order = np.lexsort((code[dst], code[src], owner))
    link_start = np.searchsorted(owner[order], blocks)
    network = sorted(name for name, own in zip(ids, group.tolist(), strict=True) if own == NETWORK)
    numbers: dict[Figures, int] = {}
    figures = [numbers.setdefault(of_link, len(numbers)) for of_link in links.values()]
    device_rows = np.stack([is_end, [bisect(network, name) for name in ids]], axis=1)[members]
    link_rows = np.stack([code[src], code[dst], figures], axis=1)[order]
    known: dict[tuple[bytes, bytes], int] = {}  # groups of equal device and link rows are one class
    classes = []
    for block in range(1, len(blocks) - 1):
        own = device_rows[member_start[block] : member_start[block + 1]].tobytes()
        joined = link_rows[link_start[block] : link_start[block + 1]].tobytes()
        classes.append(known.setdefault((own, joined), len(known)))
    class_of, first = np.array(classes, dtype=np.int64), tuple(np.unique(classes, return_index=True)[1].tolist())
    return HostClasses(
        ids, index, is_end, group, place, members, member_start, class_of, first, order.astype(np.int64), link_start
    )


def _groups(topology: Topology, src: Ints, dst: Ints) -> Ints:
    """The group of every device: hosts with endpoints by first appearance, linked ones as one."""
    hosts = dict.fromkeys(device.host for device in topology.devices if device.kind in ENDPOINT_KINDS)
    number = {host: group for group, host in enumerate(hosts)}
    group = np.array([number.get(device.host, NETWORK) for device in topology.devices], dtype=np.int64)
    a, b = group[src], group[dst]
    crossing = (a != NETWORK) & (b != NETWORK) & (a != b)
    a, b = a[crossing], b[crossing]
    lowest = np.arange(len(hosts))
    while (lowest[a] != lowest[b]).any():
        np.minimum.at(lowest, a, lowest[b])
        np.minimum.at(lowest, b, lowest[a])
        lowest = lowest[lowest]
    inside = group != NETWORK
    group[inside] = np.unique(lowest, return_inverse=True)[1][group[inside]]
    return group
