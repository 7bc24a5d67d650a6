"""Least time of a value from one rank to another, over all ways at once, each with its latency.

A way is of use only from when the value can have come to it, and until what passes it can still arrive: every link and
every port has a window, shorter by the latency of the shortest way over it. Weights of links and ports, by which no way
from rank to rank costs less than 1 a byte, bound what passes in these windows (the dual of a quickest flow: Burkard,
Dlaska, Klinz 1993). Why it holds: docs/concepts/cost-models.md, section Bounds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from topocomm.planning.bounds.demand import SAME, Demand, farthest
from topocomm.planning.bounds.machine_columns import Flags, Floats, Ints, Machine
from topocomm.planning.bounds.rounds_bound import payload_words, witness_of
from topocomm.planning.collectives import PARTS_GIVEN
from topocomm.planning.forests.linear_program.simplex import Simplex

MOST_LINKS = 1024
"""Most links of a machine on which weights are looked for; of more the ports of the two ranks have them."""
SIZES = (0.25, 1.0, 4.0, 16.0)
"""Values for which weights are looked for, in what passes the fastest link in the latency from rank to rank."""
MOST_PAIRS, STEPS, MOST_WAYS = 2, 3, 200
"""Pairs of ranks as far apart as the farthest; windows for one value, each from the time before; and ways of a flow."""
LEAST_WEIGHT = 1e-9
"""Weights below this part of the greatest are none."""


@dataclass(frozen=True, eq=False)
class FlowOverTime:
    """Weights of links and ports.

    Attributes:
        offset_us: By how much the window of each is shorter than the time, ascending.
        weight: Of each, times the messages at once.
        us_of_byte: By weight, what a byte of the payload takes.
    """

    offset_us: Floats
    weight: Floats
    us_of_byte: float
    words: str
    witness: dict[str, Any]

    def us(self, payload_bytes: int) -> float:
        """Return the least time."""
        return window_us(self.offset_us, self.weight, payload_bytes * self.us_of_byte)


def window_us(offset_us: Floats, weight: Floats, needed_us: float) -> float:
    """Return the least T for which the sum of weight x max(0, T - offset) is as much; offsets ascend."""
    in_all = np.cumsum(weight)
    times_us = (needed_us + np.cumsum(weight * offset_us)) / in_all
    return float(times_us[np.argmax(times_us <= np.append(offset_us[1:], np.inf))])


def flows_over_time(demand: Demand, machine: Machine, ports: int) -> Iterator[FlowOverTime]:
    """Yield the bounds of values between ranks as far apart as any, for values of several sizes."""
    pairs, few = _pairs(demand, machine), len(machine.src) <= MOST_LINKS
    for src, dst in pairs if few else pairs[:1]:
        share = _share(demand, src, dst)
        if share > 0:
            ways = _Ways(machine, src, dst, ports)
            yield from ways.bounds_at_ends(share)
            yield from ways.bounds(share) if few else ()


def _pairs(demand: Demand, machine: Machine) -> list[tuple[int, int]]:
    """Return the farthest pair of ranks, and others as far apart with the same giver, or the same getter."""
    apart_us, src, dst = farthest(demand, machine, machine.latency_us)
    if machine.place[src] == machine.place[dst]:
        return []
    fixed, backward = (dst, True) if demand.gets.sum() == 1 else (src, False)
    partners = demand.partners(fixed, "hears" if backward else "reaches")
    starts = machine.starts(machine.place[[fixed]])
    away = machine.least(starts, machine.latency_us, relays=True, backward=backward)[0, machine.place]
    as_far = np.flatnonzero(partners & (away >= apart_us - SAME))
    chosen = as_far[np.linspace(0, len(as_far) - 1, min(MOST_PAIRS, len(as_far))).astype(np.int64)].tolist()
    return [(other, fixed) if backward else (fixed, other) for other in chosen]


def _share(demand: Demand, src: int, dst: int) -> float:
    """Payloads that must get from one rank to another."""
    if demand.pairs is not None:
        return float(demand.pairs[src, dst])
    if not demand.shares.any():
        return 1.0
    return float(demand.shares[src if demand.name in PARTS_GIVEN else dst])


class _Ways:
    """Links and ports between two ranks: links by number, then ports to send and ports to receive by device."""

    def __init__(self, machine: Machine, src: int, dst: int, ports: int) -> None:
        self.machine, self.ranks, self.ports = machine, (src, dst), ports
        self.start, self.end = (int(machine.place[rank]) for rank in (src, dst))
        links, devices = len(machine.src), machine.devices
        sends = np.where(machine.is_end[machine.src], links + machine.src, -1)
        gets = np.where(machine.is_end[machine.dst], links + devices + machine.dst, -1)
        self.held = np.stack([np.arange(links), sends, gets], axis=1)
        """What a byte on each link holds: the link and its ports, -1 for none."""
        self.byte_us = 1 / (machine.gb_per_s * 1e3)
        self.at_once = np.concatenate([np.ones(links), np.full(2 * devices, float(ports))])
        self.offset_us = self._offsets()

    def _offsets(self) -> Floats:
        """By how much the window of each link and port is shorter than the time."""
        m, links = self.machine, len(self.machine.src)
        to_us = m.least(m.starts(np.array([self.start])), m.latency_us, relays=True)[0]
        self.apart_us = float(to_us[self.end])
        from_us = m.least(m.starts(np.array([self.end])), m.latency_us, relays=True, backward=True)[0]
        begins = np.where(m.is_end, [to_us, np.zeros(m.devices)], np.inf)
        begins_us = self._forwarded(begins[0], np.zeros(links))  # of the messages whose route passes a device
        reached_us = self._forwarded(begins[1], m.latency_us)  # from any endpoint
        onward_us = m.latency_us + from_us[m.dst]
        offset_us = np.full(links + 2 * m.devices, np.inf)
        offset_us[:links] = begins_us[m.src] + reached_us[m.src] + onward_us
        np.minimum.at(offset_us, links + m.src, begins_us[m.src] + onward_us)
        first_us, last_us = np.full((2, m.devices), np.inf)
        np.minimum.at(first_us, m.dst, begins_us[m.src])
        np.minimum.at(last_us, m.dst, reached_us[m.src] + onward_us)
        offset_us[links + m.devices :] = first_us + last_us
        return offset_us

    def _forwarded(self, at_ends: Floats, weights: Floats) -> Floats:
        """Return the least that endpoints pass on to each device over forwarding ones; at endpoints their own."""
        reached = self.machine.least(at_ends[None], weights, relays=False)[0]
        return np.where(self.machine.is_end, at_ends, reached)

    def bounds(self, share: float) -> Iterator[FlowOverTime]:
        """Yield the bounds for values of several sizes; none without latency: those of bytes alone are as good."""
        apart_us = self.apart_us
        if apart_us <= SAME:
            return
        fastest = float(self.machine.gb_per_s.max()) * 1e3
        for size in SIZES:
            value_bytes, found = size * apart_us * fastest, None
            us = apart_us + value_bytes / fastest
            for _ in range(STEPS):
                better = self._bound(us, share)
                if better is None:
                    break
                longer_us = window_us(better.offset_us, better.weight, value_bytes * better.us_of_byte / share)
                found = better
                if longer_us <= us * (1 + SAME):
                    break
                us = longer_us
            if found is not None:
                yield found

    def bounds_at_ends(self, share: float) -> Iterator[FlowOverTime]:
        """Yield those of the port that sends, and of the one that receives, alone: all passes them, also little."""
        if self.apart_us <= SAME:
            return
        links, devices = len(self.machine.src), self.machine.devices
        for port in (links + self.start, links + devices + self.end):
            prices = np.zeros(len(self.offset_us))
            prices[port] = 1.0
            yield self._named(prices / self._least(prices)[self.end], share)

    def _bound(self, us: float, share: float) -> FlowOverTime | None:
        """Return the bound by the weights that are best if it takes so long."""
        windows = np.maximum(us - self.offset_us, 0.0) * self.at_once
        used = np.unique(self.held[self.held >= 0])
        is_open = np.zeros(len(windows) + 1, bool)  # the last for no port
        is_open[used], is_open[-1] = windows[used] > SAME * us, True
        passable = is_open[self.held].all(axis=1)
        prices = self._prices(windows / us, passable)
        if prices is None or not prices.max() > 0:
            return None
        prices[prices < LEAST_WEIGHT * prices.max()] = 0.0
        least, closing = self._least(prices)[self.end], self._closing(prices, is_open)
        if self._least(closing)[self.end] > least * (1 + SAME):
            prices, least = closing, self._least(closing)[self.end]
        return self._named(prices / least, share) if least > 0 else None

    def _closing(self, prices: Floats, is_open: Flags) -> Floats:
        """Return the prices with others for what nothing can pass in time, such that no way over it costs less."""
        least = self._least(np.where(is_open[:-1], prices, np.inf))[self.end]
        fastest_us, closing = np.full(len(prices) + 1, np.inf), prices.copy()
        np.minimum.at(fastest_us, self.held, self.byte_us[:, None])
        closed = ~is_open[:-1] & np.isfinite(fastest_us[:-1])
        closing[closed] = least / fastest_us[:-1][closed]
        return closing

    def _costs(self, prices: Floats) -> Floats:
        """What a byte costs on each link."""
        own: Floats = np.append(prices, 0.0)[self.held].sum(axis=1) * self.byte_us
        return own

    def _least(self, prices: Floats) -> Floats:
        """What a byte costs to every device, by links and ports of these prices."""
        machine = self.machine
        least: Floats = machine.least(machine.starts(np.array([self.start])), self._costs(prices), relays=True)[0]
        return least

    def _prices(self, windows: Floats, passable: Flags) -> Floats | None:
        """Return the prices of links and ports by which what passes in these windows is most: by one way at a time."""
        machine, scale = self.machine, 1 / float(self.byte_us.max())
        rows = np.unique(self.held[passable][self.held[passable] >= 0])
        place = np.full(len(windows), -1)
        place[rows] = np.arange(len(rows))
        program = Simplex(windows[rows])
        prices = np.zeros(len(windows))
        for _ in range(MOST_WAYS):
            costs = np.where(passable, self._costs(prices) + SAME * self.byte_us, np.inf)
            least = machine.least(machine.starts(np.array([self.start])), costs, relays=True)[0]
            if not np.isfinite(least[self.end]):
                return None
            way = self._way(least, costs)
            loads = np.zeros(len(windows) + 1)
            np.add.at(loads, self.held[way], (self.byte_us[way] * scale)[:, None])
            taken = np.flatnonzero(loads[:-1])
            if float(loads[taken] @ prices[taken]) >= 1 - 1e-6:
                break
            program.add(place[taken], loads[taken], 1.0)
            program.solve()
            prices[rows] = np.maximum(program.prices, 0.0)
        return prices

    def _way(self, least: Floats, costs: Floats) -> Ints:
        """Return the links of the cheapest way, the last first."""
        machine, links, at = self.machine, list[int](), self.end
        while at != self.start:
            into = np.flatnonzero(machine.dst == at)
            link = int(into[(least[machine.src[into]] + costs[into]).argmin()])
            links.append(link)
            at = int(machine.src[link])
        return np.array(links, np.int64)

    def _named(self, weights: Floats, share: float) -> FlowOverTime:
        machine, links = self.machine, len(self.machine.src)
        some = np.flatnonzero(weights)
        order = some[np.argsort(self.offset_us[some], kind="stable")]
        ids = machine.ids
        by_link = [
            [ids[machine.src[each]], ids[machine.dst[each]], float(weights[each])] for each in some[some < links]
        ]
        by_port = [
            [ids[each % machine.devices], ("out", "in")[each // machine.devices], float(weights[each + links])]
            for each in some[some >= links] - links
        ]
        src, dst = self.ranks
        return FlowOverTime(
            self.offset_us[order],
            weights[order] * self.at_once[order],
            share,
            f"{payload_words(share)} must get from {ids[self.start]} to {ids[self.end]}, over all ways at once, of "
            f"which the shortest takes {self.apart_us:g} us",
            witness_of("time", "flow", **{"from": src, "to": dst, "links": by_link, "ports": by_port}),
        )
