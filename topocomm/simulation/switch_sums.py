"""Sums in switches that fold (NVLink SHARP, SHARP), as the topology declares them (`Device.in_network`).

Every rank sends its value up once and the result comes down once, in slices that follow each other. Ranks under several
such switches are joined by the ones above: the switch of a host gives every rank a part of the sum, the switch of its
rail sums the parts of the hosts, and the host's switch spreads the results, as NCCL combines NVLS with CollNet.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from topocomm.errors import PlanError
from topocomm.planning.cost.simulated_work import NO_TASK, Work, WorkBuilder
from topocomm.planning.request import place_ranks
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.routing.route_search import Label, neighbours, spread
from topocomm.planning.routing.routes import Ints
from topocomm.planning.schedule.schedule import split_rows
from topocomm.topology.model import Topology

MOST_SLICES, LEAST_SLICE_BYTES = 32, 64 << 10
"""Slices that a value is sent in: enough that the way down starts early, each long enough to fill a link."""


def switch_sum(
    topology: Topology,
    payload_bytes: int,
    *,
    ranks: Sequence[str] | None = None,
    slices: int | None = None,
    launch_us: float = 0.0,
) -> Work:
    """Return the messages of an allreduce in switches that fold.

    Args:
        topology: The machine.
        payload_bytes: Bytes of one rank's value.
        ranks: Endpoint id of every rank; None puts one rank on every endpoint.
        slices: Parts of the value that follow each other; None: as many as have 64 KiB, 32 at most.
        launch_us: What it costs a rank to start.

    Raises:
        PlanError: No switch that folds is above the ranks, or none joins those that are.
    """
    ends = place_ranks(topology, ranks)
    folding = {device.id for device in topology.devices if device.in_network is not None}
    ways = _Ways(topology, folding)
    groups = _groups(ends, ways)
    count = slices or int(np.clip(payload_bytes // LEAST_SLICE_BYTES, 1, MOST_SLICES))
    tree = _Tree(WorkBuilder((*ends, *sorted(folding))), ends, sorted(folding), ways, launch_us)
    sent: Ints | None = None
    for number, (_, size) in enumerate(split_rows(payload_bytes, count)):
        if len(groups) == 1:
            sent, _ = tree.through(*next(iter(groups.items())), size, number, sent, "up and down")
        else:
            sent = _over_groups(tree, groups, size, number, sent)
    return tree.builder.build()


def _over_groups(tree: _Tree, groups: dict[str, list[int]], size: int, number: int, sent: Ints | None) -> Ints:
    """One slice, over hosts: parts to the ranks of each, sums of the parts over the rails, results to all."""
    members = len(next(iter(groups.values())))
    part = -(-size // members)
    firsts: list[Ints] = []
    parts: dict[int, int] = {}
    for switch, own in groups.items():
        before = None if sent is None else sent[own]
        first, down = tree.through(switch, own, size, number, before, "parts in the host", down_bytes=part)
        firsts.append(first)
        parts.update(zip(own, down.tolist(), strict=True))
    summed: dict[int, int] = {}
    for member in range(members):
        rail = [own[member] for own in groups.values()]
        top = tree.ways.common([tree.ends[rank] for rank in rail], excluding=set(groups))
        after = np.array([parts[rank] for rank in rail])
        _, down = tree.through(top, rail, part, number, after, "sums over hosts")
        summed.update(zip(rail, down.tolist(), strict=True))
    for switch, own in groups.items():
        after = np.array([summed[rank] for rank in own])
        tree.through(switch, own, part, number, after, "results in the host", down_bytes=size)
    order = np.concatenate([np.array(own) for own in groups.values()])
    starts = np.empty(len(order), dtype=np.int64)
    starts[order] = np.concatenate(firsts)
    return starts


def _groups(ends: Sequence[str], ways: _Ways) -> dict[str, list[int]]:
    """Ranks by the nearest switch that folds; one group where a single switch folds for all."""
    groups: defaultdict[str, list[int]] = defaultdict(list)
    for rank, end in enumerate(ends):
        groups[ways.nearest(end)].append(rank)
    if len({len(own) for own in groups.values()}) > 1 or any(len(own) < 2 for own in groups.values()):
        common = ways.common(ends, excluding=set())
        return {common: list(range(len(ends)))}
    return dict(groups)


class _Ways:
    """Ways from endpoints to switches that fold."""

    def __init__(self, topology: Topology, folding: set[str]) -> None:
        if not folding:
            raise PlanError(f"topology {topology.name!r}: no switch folds; expected one with in_network nvls or sharp")
        self.paths = PathFinder(topology)
        self._name, self._folding, self._ends = topology.name, folding, frozenset(topology.endpoints)
        self._after = neighbours(self.paths.links, self.paths.links)
        self._labels: dict[str, dict[str, Label]] = {}

    def of(self, end: str) -> dict[str, Label]:
        """Return the least label of every switch that folds and that an endpoint reaches."""
        if end not in self._labels:
            found = spread([(0.0, -np.inf, (end,))], self._after, self._ends)
            self._labels[end] = {name: label for name, label in found.items() if name in self._folding}
        return self._labels[end]

    def nearest(self, end: str) -> str:
        """Return the switch that folds with the least latency from an endpoint."""
        own = self.of(end)
        if not own:
            raise PlanError(f"topology {self._name!r}: {end} reaches no switch that folds")
        return min(own, key=lambda name: own[name])

    def common(self, ends: Sequence[str], *, excluding: set[str]) -> str:
        """Return the switch that folds with the least sum of latencies from these endpoints."""
        every = [self.of(end) for end in ends]
        shared = set.intersection(*map(set, every)) - excluding
        if not shared:
            raise PlanError(
                f"topology {self._name!r}: no switch that folds is above {ends[0]} and {ends[-1]}; expected one with "
                "in_network nvls or sharp between them"
            )
        return min(sorted(shared), key=lambda name: sum(own[name][0] for own in every))


class _Tree:
    """Messages up to a switch and down again."""

    def __init__(
        self, builder: WorkBuilder, ends: Sequence[str], switches: Sequence[str], ways: _Ways, launch_us: float
    ) -> None:
        self.builder, self.ends, self.ways, self._launch_us = builder, ends, ways, launch_us
        self._number = {name: len(ends) + place for place, name in enumerate(switches)}

    def through(
        self,
        switch: str,
        ranks: Sequence[int],
        up_bytes: int,
        slice_: int,
        after: Ints | None,
        label: str,
        *,
        down_bytes: int | None = None,
    ) -> tuple[Ints, Ints]:
        """Send `up_bytes` of each rank to a switch, fold them there, and `down_bytes` to each (None: as many).

        Returns (the messages up without their latency, which the next slice follows; the messages down), by rank.
        """
        ways = [self.ways.of(self.ends[rank])[switch] for rank in ranks]
        latency_us, number = np.array([way[0] for way in ways]), self._number[switch]
        up = [self.builder.path(way[2]) for way in ways]
        down = [self.builder.path(way[2][::-1]) for way in ways]
        src = np.array(ranks)
        waits = np.full(len(src), NO_TASK) if after is None else after
        first = self.builder.send(
            src,
            number,
            up_bytes,
            after=waits,
            before_us=self._launch_us if after is None else 0.0,
            latency_us=0.0,
            path=up,
            round_=slice_,
            label=f"switch sum: {label}",
        )
        folded = self.builder.join(
            number, after=first[None, :], before_us=float(latency_us.max()), round_=slice_, label=f"switch sum: {label}"
        )
        size = up_bytes if down_bytes is None else down_bytes
        arrived = self.builder.send(
            number, src, size, after=folded, path=down, round_=slice_, label=f"switch sum: {label}"
        )
        return first, arrived
