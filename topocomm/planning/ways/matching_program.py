"""Which messages of all members go at once, and how long: matchings of members whose times are a linear program.

With one port a member sends one message and receives one at any time, a matching, whose messages share links max-min
fairly. What all members exchange takes least time by some mix of matchings (Lawler, Labetoulle 1978), a linear program
whose columns are generated: those that carry most at the prices of the rows are searched from those of the program on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from topocomm.planning.forests.linear_program.simplex import Simplex
from topocomm.planning.routing.routes import Floats, Ints
from topocomm.planning.ways.folded_hosts import FoldedHosts

NONE = -1
"""In place of the message of a member that sends none."""
MOST_TURNS, ADDED, CLIMBS = 120, 12, 3
"""Most searches for columns, the columns that one adds, and the matchings from which it climbs."""
GAIN = 1e-4
"""Least gain of a column, relative to what carries most so far."""
RELAYED = 0.02
"""Rate of all blocks that is given up for not relaying them all: relays take turns, and memory."""
LEAST = 1e-6
"""Times and shares below it are errors of rounding."""
LOOKED, PROGRESS = 4, 1.002
"""Searches in a row, each from other matchings, and the rate by which these must raise it together."""
SAME = 1 + 1e-9


class Matching(NamedTuple):
    """Messages that go at once.

    Attributes:
        time: How long, in the time of the whole.
        messages: int64: their numbers.
        blocks: float64: what each carries meanwhile.
    """

    time: float
    messages: Ints
    blocks: Floats


class Relay(NamedTuple):
    """Part of what goes from member to member over another: (the message it is of, the two that carry it, blocks)."""

    of: int
    first: int
    second: int
    blocks: float


class Mix(NamedTuple):
    """Matchings that carry all blocks, what is relayed, their time in blocks over GB/s, and the prices of messages."""

    matchings: tuple[Matching, ...]
    relays: tuple[Relay, ...]
    time: float
    prices: Floats


def best_mix(hosts: FoldedHosts, wanted: Floats) -> Mix:
    """Return the mix of least time found; `wanted` has the blocks of every message of `hosts`, float64 [messages]."""
    return _Program(hosts, wanted).mix()


class _Program:
    """Maximise the rate of all blocks, for a time of 1: rows are messages, carried no less than sent, and the time."""

    def __init__(self, hosts: FoldedHosts, wanted: Floats) -> None:
        self.hosts, self.search = hosts, _Search(hosts)
        self.unit = float(self.search.alone.max())
        messages = len(wanted)
        ports = (np.bincount(hosts.ends[:, side], wanted / self.search.alone) for side in (0, 1))
        over_links = (hosts.passes * wanted[:, None]).sum(axis=0) / hosts.gb_per_s
        self.least = float(max(over_links.max(), *(own.max() for own in ports)))
        self.program = Simplex(np.append(np.zeros(messages), 1.0))
        sent = np.flatnonzero(wanted)
        self.program.add(sent, wanted[sent] / (self.unit * self.least), 1.0)
        self.relays, blocks = list(_relays(hosts)), float(wanted.sum())
        for of, *over in self.relays:
            self.program.add(
                np.array([of, *over]), np.array([-1.0, 1.0, 1.0]), -RELAYED * self.unit * self.least / blocks
            )
        self.columns: list[tuple[Ints, Floats]] = []
        self.known: set[bytes] = set()

    def mix(self) -> Mix:
        search, program = self.search, self.program
        self._add(search.first())
        reached = 0.0
        for turn in range(MOST_TURNS):
            program.solve()
            prices, time = program.prices[:-1], float(program.prices[-1])
            values = [float((prices[own] * rates).sum()) for own, rates in self.columns]
            best = np.argsort(-np.array(values), kind="stable")
            starts = [self.columns[at][0] for at in best[turn % LOOKED :: LOOKED][:CLIMBS].tolist()]
            better = search.better(starts, prices / self.unit, time * (1 + GAIN))
            found = self._add(better)
            if turn % LOOKED == LOOKED - 1:
                if not found or (self.hosts.count > 1 and program.value() < reached * PROGRESS):
                    break
                reached = program.value()
        return self._found()

    def _add(self, found: Sequence[Ints]) -> int:
        """Add the matchings that are new; return how many."""
        new = [each for each in found if each.tobytes() not in self.known]
        if not new:
            return 0
        for messages, rates in zip(new, self.search.rates(np.array(new)), strict=True):
            self.known.add(messages.tobytes())
            sends = messages != NONE
            own, scaled = messages[sends], rates[sends] / self.unit
            self.columns.append((own, scaled))
            self.program.add(np.append(own, len(self.hosts.ends)), np.append(-scaled, 1.0), 0.0)
        return len(new)

    def _found(self) -> Mix:
        weights = self.program.weights()
        rate = weights.pop(0, 0.0)
        time, matchings, relays = self.least / rate, [], []
        for number, weight in sorted(weights.items()):
            if number <= len(self.relays):
                of, first, second = self.relays[number - 1]
                relays.append(Relay(of, first, second, weight * time * self.unit))
            elif weight > LEAST:
                own, scaled = self.columns[number - 1 - len(self.relays)]
                matchings.append(Matching(weight, own, scaled * self.unit * weight * time))
        return Mix(
            tuple(matchings), tuple(relay for relay in relays if relay.blocks > LEAST), time, self.program.prices[:-1]
        )


def _relays(hosts: FoldedHosts) -> Iterator[tuple[int, int, int]]:
    """Yield every message, and two that go the same way over another member of the same host, at either end."""
    for of, ((src, dst), away) in enumerate(zip(hosts.ends.tolist(), hosts.away.tolist(), strict=True)):
        for over in range(hosts.members):
            for first_away in (True, False) if away else (False,):
                first = hosts.number(src, over, away=first_away)
                second = hosts.number(over, dst, away=away and not first_away)
                if min(first, second) >= 0 and of not in (first, second):
                    yield of, first, second


class MatchingRates:
    """What messages carry that go at once; matchings are rows of message numbers, one for each member that sends."""

    def __init__(self, hosts: FoldedHosts) -> None:
        used = hosts.passes > 0
        self.alone = np.where(used, hosts.gb_per_s, np.inf).min(axis=1)
        """GB/s of each message alone."""
        src, dst = hosts.ends.T
        several = [
            link
            for link in range(used.shape[1])
            if min(len(set(side[used[:, link]].tolist())) for side in (src, dst)) > 1
        ]
        self.gb_per_s = hosts.gb_per_s[several]
        self.passes = np.concatenate([hosts.passes[:, several], np.zeros((1, len(several)))])
        self.most = np.append(self.alone, 0.0)
        """Of a message, and of none, by number."""

    def __call__(self, matchings: Ints) -> Floats:
        """Return the GB/s of each message, max-min fair, float64 [matchings, members]."""
        passes, most = self.passes[matchings], self.most[matchings]
        left = np.repeat(self.gb_per_s[None], len(matchings), axis=0)
        rates, open_ = np.zeros(matchings.shape), matchings != NONE
        while open_.any():
            users = (passes * open_[:, :, None]).sum(axis=1)
            share = np.divide(left, users, out=np.full(users.shape, np.inf), where=users > 0)
            held = np.where(passes > 0, share[:, None], np.inf).min(axis=2, initial=np.inf)
            held = np.where(open_, np.minimum(held, most), np.inf)
            done = open_ & (held <= held.min(axis=1)[:, None] * SAME)
            rates = np.where(done, held, rates)
            left = np.maximum(left - (passes * np.where(done, held, 0.0)[:, :, None]).sum(axis=1), 0.0)
            open_ &= ~done
        return rates


class _Search:
    """Finds matchings that carry much at some prices."""

    def __init__(self, hosts: FoldedHosts) -> None:
        self.hosts, self.rates = hosts, MatchingRates(hosts)
        self.alone = self.rates.alone
        src, dst = hosts.ends.T
        size = hosts.members
        self.onto = np.append(dst, NONE)
        self.choices = [np.flatnonzero(src == member) for member in range(size)]

    def first(self) -> list[Ints]:
        """Return each message alone, and shifts of all members, inside and to other hosts."""
        hosts, size = self.hosts, self.hosts.members
        found = []
        for number, src in enumerate(hosts.ends[:, 0].tolist()):
            row = np.full(size, NONE)
            row[src] = number
            found.append(row)
        for step in range(size):
            for away in {False, hosts.count > 1}:
                shift = [hosts.number(src, (src + step) % size, away=away) for src in range(size)]
                found.append(np.array(shift))
        return found

    def better(self, starts: Sequence[Ints], prices: Floats, least: float) -> list[Ints]:
        """Return a few matchings that carry more than `least` at these prices of messages, climbing from some."""
        priced, found = np.append(prices, 0.0), dict[bytes, tuple[float, Ints]]()
        for start in starts:
            row = np.full(self.hosts.members, NONE)
            row[self.hosts.ends[start, 0]] = start
            value = 0.0
            while True:
                near = self._near(row)
                values = (self.rates(near) * priced[near]).sum(axis=1)
                for at in np.argsort(-values, kind="stable")[:ADDED].tolist():
                    if values[at] > least:
                        found[near[at].tobytes()] = float(values[at]), near[at]
                at = int(values.argmax())
                if values[at] <= value * SAME:
                    break
                row, value = near[at], float(values[at])
        order = sorted(found.values(), key=lambda each: -each[0])
        return [row for _, row in order[:ADDED]]

    def _near(self, row: Ints) -> Ints:
        """Return a matching and those with another message of a member; who sent there sends to its member, or none."""
        size, hosts, onto = self.hosts.members, self.hosts, self.onto[row]
        found = [row]
        for member in range(size):
            for number in (*self.choices[member].tolist(), NONE):
                if number == row[member]:
                    continue
                moved = row.copy()
                moved[member] = number
                others = np.flatnonzero((onto == self.onto[number]) & (number != NONE)).tolist()
                for other in (each for each in others if each != member):
                    for away in {False, hosts.count > 1} if onto[member] != NONE else ():
                        swap = hosts.number(other, int(onto[member]), away=away)
                        if swap >= 0:
                            swapped = moved.copy()
                            swapped[other] = swap
                            found.append(swapped)
                    moved[other] = NONE
                found.append(moved)
        return np.array(found)
