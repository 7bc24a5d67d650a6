"""List scheduling of messages on ports and shared links: who sends what when, so that the busiest port never waits.

Whenever what a message holds is free, the message goes whose ports and links have most to do (Graham 1966; open shops:
Gonzalez, Sahni 1976). Messages of one piece follow each other. Some time of a port may be taken already.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from itertools import pairwise
from math import floor, inf
from typing import NamedTuple

import numpy as np

from topocomm.planning.routing.paths import PathFinder, Route
from topocomm.planning.routing.routes import Floats, Ints, Routes

SAME_US = 1e-6
"""Times that differ by less are equal."""
MOST_TRIED = 2048
"""Most messages of which every rule is tried."""
Interval = tuple[float, float]


class Send(NamedTuple):
    """One message of a schedule: when it starts, its line by number, and the piece that it carries, by number."""

    start_us: float
    line: int
    piece: int


class Piece(NamedTuple):
    """Bytes that travel over some lines, one after the other.

    Attributes:
        size: Bytes.
        lines: Numbers of the lines.
        after: The piece that must have arrived before; -1: none.
        from_us: Without such a piece, when it is there.
    """

    size: int
    lines: tuple[int, ...]
    after: int = -1
    from_us: float = 0.0


@dataclass(frozen=True, eq=False)
class Lines:
    """Who can send to whom, by number, and what a message on each line holds.

    Attributes:
        held: int64 [lines, width]: numbers of what a message holds: the port to send of its source's rank, that to
            receive of its destination, links; padded with the number of what is always free.
        places: int64: messages that each of these takes at once.
        us_per_byte, latency_us, gap_us: float64 [lines].
        nics: The NICs that each line passes, by number.
        ranks: Number of ranks: rank r sends by port r, and receives by port `ranks` + r.
    """

    held: Ints
    places: Ints
    us_per_byte: Floats
    latency_us: Floats
    gap_us: Floats
    nics: tuple[tuple[int, ...], ...]
    ranks: int


def lines_of(
    paths: PathFinder, ranks: int, ends: Sequence[tuple[int, int]], routes: Sequence[Route], ports: int
) -> Lines:
    """Return the lines from rank to rank over these routes, with so many ports to send and to receive a rank.

    Of links those count that several senders and several receivers share, and that cannot serve them all at once.
    """
    return lines_of_columns(paths, ranks, ends, paths.columns(routes), ports)


def lines_of_columns(
    paths: PathFinder, ranks: int, ends: Sequence[tuple[int, int]], columns: Routes, ports: int
) -> Lines:
    """Return `lines_of` of routes as columns."""
    lines_at: dict[int, list[int]] = defaultdict(list)
    links_of = [columns.links[low:high] for low, high in pairwise(columns.starts.tolist())]
    for line, links in enumerate(links_of):
        for link in links.tolist():
            lines_at[link].append(line)
    held = [[src, ranks + dst] for src, dst in ends]
    places, slowest, known = [ports] * (2 * ranks), columns.gb_per_s.copy(), set[tuple[int, ...]]()
    for link, lines in sorted(lines_at.items()):
        fewest = min(len({ends[line][side] for line in lines}) for side in (0, 1))
        rate = float(paths.link_gb_per_s[link])
        most = max(1, floor(rate / float(columns.gb_per_s[lines].max()) * (1 + SAME_US)))
        if fewest <= most or tuple(lines) in known:
            continue
        known.add(tuple(lines))
        for line in lines:
            held[line].append(len(places))
        slowest[lines] = np.minimum(slowest[lines], rate / most)
        places.append(most)
    width = max(map(len, held), default=2)  # ports alone
    table = [own + [len(places)] * (width - len(own)) for own in held]
    return Lines(
        np.array(table, dtype=np.int64).reshape(-1, width),
        np.array([*places, 1 << 40], dtype=np.int64),
        1e-3 / slowest,
        columns.latency_us,
        columns.gap_us,
        tuple(tuple(paths.link_nics[links][paths.link_nics[links] >= 0].tolist()) for links in links_of),
        ranks,
    )


def list_schedule(
    lines: Lines,
    pieces: Sequence[Piece],
    taken: Mapping[int, Sequence[Interval]] | None = None,
    *,
    in_line_order: bool = False,
) -> tuple[float, list[Send]]:
    """Return (when the last message ends, in us, all messages in the order of their starts).

    Args:
        lines: Who can send to whom.
        pieces: What is sent.
        taken: Of ports when they are not free, in order.
        in_line_order: Whether of messages whose busiest ports have as much to do that on the first line goes first.
    """
    if in_line_order:
        shop = _Shop(lines, pieces, taken or {}, farthest=False, in_line_order=True)
        return shop.run(), shop.sends
    by_rule = []
    hops = sum(len(piece.lines) for piece in pieces)
    for farthest in (False, True) if len(pieces) < hops <= MOST_TRIED else (False,):  # else both are the same
        shop = _Shop(lines, pieces, taken or {}, farthest=farthest)
        by_rule.append((shop.run(), shop.sends))
    return min(by_rule, key=lambda found: found[0])


def backwards_schedule(lines: Lines, pieces: Sequence[Piece]) -> tuple[float, list[Send]]:
    """Return `list_schedule` of the same messages backwards in time: of what one rank sends to all, it is better."""
    ports = lines.held[:, :2].copy()
    swapped = replace(lines, held=np.concatenate([ports[:, ::-1], lines.held[:, 2:]], axis=1))
    end_us, sends = list_schedule(swapped, [Piece(piece.size, piece.lines[::-1]) for piece in pieces])
    turned = []
    for start_us, line, piece in reversed(sends):
        us = float(lines.us_per_byte[line]) * pieces[piece].size + float(lines.gap_us[line])
        turned.append(Send(end_us - start_us - us, line, piece))
    return end_us, sorted(turned, key=lambda send: send.start_us)


class _Shop:
    """The state of one schedule in the making."""

    def __init__(
        self,
        lines: Lines,
        pieces: Sequence[Piece],
        taken: Mapping[int, Sequence[Interval]],
        *,
        farthest: bool,
        in_line_order: bool = False,
    ) -> None:
        self.lines, self.pieces, self.farthest, self.in_line_order = lines, pieces, farthest, in_line_order
        self.sends: list[Send] = []
        self.free = lines.places.copy()
        self.left_us = np.zeros(len(lines.places))
        self.until_us = np.full(len(lines.places), inf)
        """When each port is taken next."""
        self.taken = {port: list(spans) for port, spans in taken.items() if spans}
        self.events: list[tuple[float, int, int, int]] = []
        """(time, 0 and number of a message that ends, hop) or (time, 1, port, -1 where it is taken, 1: free again)."""
        for port, spans in self.taken.items():
            self.until_us[port] = spans[0][0]
            self.events += [(span[end], 1, port, 2 * end - 1) for span in spans for end in (0, 1)]
        self.queues: list[list[tuple[int, int, int]]] = [[] for _ in lines.us_per_byte]
        """Pieces that wait for each line: (hops before the last, less than 0; number; hop)."""
        self.waits, self.hops, self.next_us = (np.zeros(len(self.queues)) for _ in range(3))
        self.following: dict[int, list[int]] = defaultdict(list)
        """The pieces that wait for each piece."""
        for number, piece in enumerate(pieces):
            if piece.after >= 0:
                self.following[piece.after].append(number)
            elif piece.from_us > 0:
                self.events.append((piece.from_us, 0, number, 0))
            else:
                self._queue(number, 0)
            for line in piece.lines:
                self.left_us[lines.held[line]] += self._us(line, number)
        self.left_us /= lines.places
        heapify(self.events)

    def run(self) -> float:
        """Send all pieces; return when the last message ends."""
        now_us, end_us = 0.0, 0.0
        while True:
            while (line := self._best(now_us)) >= 0:
                end_us = max(end_us, self._send(line, now_us))
            if not self.events:
                return end_us
            now_us = self.events[0][0]
            while self.events and self.events[0][0] <= now_us + SAME_US:
                _, kind, number, hop = heappop(self.events)
                if kind:
                    self._turn(number, hop)
                elif hop < 0:
                    self.free[self.lines.held[number]] += 1
                elif hop < len(self.pieces[number].lines):
                    self._queue(number, hop)
                else:
                    for following in self.following[number]:
                        self._queue(following, 0)

    def _us(self, line: int, piece: int) -> float:
        return float(self.lines.us_per_byte[line]) * self.pieces[piece].size + float(self.lines.gap_us[line])

    def _queue(self, piece: int, hop: int) -> None:
        line = self.pieces[piece].lines[hop]
        heappush(self.queues[line], (hop - len(self.pieces[piece].lines), piece, hop))
        self._first(line)

    def _first(self, line: int) -> None:
        queue = self.queues[line]
        self.waits[line] = bool(queue)
        if queue:
            self.hops[line], self.next_us[line] = -queue[0][0], self._us(line, queue[0][1])

    def _best(self, now_us: float) -> int:
        """Return the line on which the next message starts now; -1 without one."""
        held = self.lines.held
        able = np.flatnonzero(self.waits)
        able = able[(self.free[held[able]] > 0).all(axis=1)]
        able = able[now_us + self.next_us[able] <= self.until_us[held[able]].min(axis=1, initial=inf) + SAME_US]
        if not len(able):
            return -1
        ports = held[able, :2]
        if self.in_line_order:
            return int(able[np.round(self.left_us[ports].max(axis=1), 3).argmax()])
        others = np.bincount(ports.ravel(), minlength=2 * self.lines.ranks)[ports].min(axis=1)
        left_us, hops = np.round(self.left_us[held[able]].sum(axis=1), 3), self.hops[able]
        order = np.lexsort((able, others, -left_us, -hops) if self.farthest else (able, -hops, others, -left_us))
        return int(able[order[0]])

    def _send(self, line: int, now_us: float) -> float:
        _, piece, hop = heappop(self.queues[line])
        self._first(line)
        us, held = self._us(line, piece), self.lines.held[line]
        self.free[held] -= 1
        self.left_us[held] -= us / self.lines.places[held]
        self.sends.append(Send(now_us, line, piece))
        heappush(self.events, (now_us + us, 0, line, -1))
        if hop + 1 < len(self.pieces[piece].lines) or piece in self.following:
            heappush(self.events, (now_us + us + float(self.lines.latency_us[line]), 0, piece, hop + 1))
        return now_us + us

    def _turn(self, port: int, freed: int) -> None:
        """Take a port, or free it again."""
        self.free[port] += freed
        if freed > 0:
            self.taken[port].pop(0)
            self.until_us[port] = self.taken[port][0][0] if self.taken[port] else inf
