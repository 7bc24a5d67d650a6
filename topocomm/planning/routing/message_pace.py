"""What messages of a long value take where all members of two groups send at once: inside a group, and between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from topocomm.planning.algorithms.hosts.rail_trees import Pace
from topocomm.planning.algorithms.hosts.rails_parts import Rings, common_rails
from topocomm.planning.algorithms.hosts.rank_groups import Groups
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.routing.routes import Ints

SLOWER = 1.05
"""How many times as long as the fastest a rail takes that is not used."""


class MessagePace(NamedTuple):
    """Time of a byte, latency and gap of messages that are sent at once."""

    us_of_byte: float = 0.0
    latency_us: float = 0.0
    gap_us: float = 0.0


def pace_of(groups: Groups, endpoints: Sequence[str], paths: PathFinder, rings: Rings, *, rails: Sequence[int]) -> Pace:
    """Return the pace of a slice of one byte: inside the largest group, between the first two on these rails.

    Members send around their ring, or each to the member so many steps further, every step after the other.

    Raises:
        NoRouteError: One of these messages has no route.
    """
    largest = int(np.diff(groups.starts).argmax())
    size, first = groups.members(largest), groups.starts[largest]
    order = np.array(rings[groups.sorts[largest]]) if rings else np.arange(size)
    steps = [1] if rings else range(1, size)
    inside = [_together(endpoints, first + order, first + np.roll(order, -step), paths) for step in steps if size > 1]
    both = _mean(inside), pace_across(groups, endpoints, paths, rails=rails)
    us_of_byte, latency_us, gap_us = zip(*both, strict=True)
    return Pace(us_of_byte, latency_us, gap_us)


def pace_across(groups: Groups, endpoints: Sequence[str], paths: PathFinder, *, rails: Sequence[int]) -> MessagePace:
    """Return the pace of messages between the first two groups on these rails at once.

    Raises:
        NoRouteError: One of these messages has no route.
    """
    return _together(endpoints, *_ends_of(groups, rails), paths)


def fast_rails(groups: Groups, endpoints: Sequence[str], paths: PathFinder) -> list[int]:
    """Return the common rails on which the first two groups send as fast as on any, for groups that are alike."""
    rails = common_rails(groups)
    rates = paths.routes_of_all(endpoints, *_ends_of(groups, rails)).gb_per_s
    return [rail for rail, rate in zip(rails, rates.tolist(), strict=True) if rate * SLOWER >= rates.max()]


def _ends_of(groups: Groups, rails: Sequence[int]) -> tuple[Ints, Ints]:
    """The ranks of the first two groups on these rails."""
    first, second = ([groups.starts[group] + groups.members_on[group][rail] for rail in rails] for group in (0, 1))
    return np.array(first, dtype=np.int64), np.array(second, dtype=np.int64)


def _together(endpoints: Sequence[str], src: Ints, dst: Ints, paths: PathFinder) -> MessagePace:
    """The figures of these messages at once: links are shared."""
    routes = paths.routes_of_all(endpoints, src, dst)
    shared = paths.link_gb_per_s[routes.links] / np.bincount(routes.links)[routes.links]
    rate = min(float(shared.min(initial=np.inf)), float(routes.gb_per_s.min()))
    return MessagePace(1 / rate / 1e3, float(routes.latency_us.max()), float(routes.gap_us.max()))


def _mean(steps: list[MessagePace]) -> MessagePace:
    """The mean time of several steps, and the longest latency and gap."""
    if not steps:
        return MessagePace()
    of_byte, latency_us, gap_us = zip(*steps, strict=True)
    return MessagePace(sum(of_byte) / len(steps), max(latency_us), max(gap_us))
