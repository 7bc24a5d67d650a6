"""Local search on a gossip: a message gets another source, target or round, goes away or is doubled; messages swap.

Worse gossips are accepted while they beat what was accepted some moves ago (late acceptance, Burke and Bykov 2017):
no temperature, and no clock, so the same input gives the same gossip. Half of the moves pick a message of the chain
that the last arrival waits for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf

from topocomm.planning.algorithms.gossip_schedule import Gossip, Message
from topocomm.planning.search.gossip import SAME_US, Replay, Sent, replay

MEMORY = 60
"""How many moves ago."""

Rounds = list[list[Message]]


class Rng:
    """Numbers that look random and are always the same (a linear congruential generator, Knuth's MMIX)."""

    def __init__(self, seed: int) -> None:
        self._state = seed * 2 + 1

    def below(self, limit: int) -> int:
        """0 .. limit - 1."""
        self._state = (self._state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self._state >> 33) % limit


class Machine:
    """What a gossip runs on and for; see `find.search_gossip`."""

    def __init__(self, latency_us: Sequence[Sequence[float]], wanted: Sequence[int], ports: int) -> None:
        self.latency_us = latency_us
        self.wanted = wanted
        self.ports = ports
        ranks = range(len(wanted))
        self.targets = [[b for b in ranks if b != a and latency_us[a][b] < inf] for a in ranks]
        self.sources = [[a for a in ranks if b != a and latency_us[a][b] < inf] for b in ranks]
        self.fastest_us = min((latency_us[a][b] for a in ranks for b in self.targets[a]), default=0.0)

    def run(self, gossip: Gossip) -> Replay:
        """What happens when a gossip runs here."""
        return replay(gossip, self.latency_us, self.wanted, self.ports)

    def cost_us(self, run: Replay) -> float:
        """What the search makes small: the time, then how early the ranks end; something for whatever is missing."""
        count = len(self.wanted)
        late_us = max(run.done_us) + sum(run.done_us) / (10 * count)
        return late_us + self.fastest_us * (run.missing / count + (run.missing > 0)) + 1e-6 * len(run.sent)


def polished(machine: Machine, gossip: Gossip, *, moves: int, enough_us: float, seed: int = 1) -> Gossip:
    """The best complete gossip met in `moves` moves from this one, or the first at `enough_us`."""
    dice = Rng(seed)
    rounds = [list(messages) for messages in gossip]
    run = machine.run(rounds)
    cost_us = machine.cost_us(run)
    best, best_us, best_cost_us = gossip, run.time_us, cost_us if not run.missing else inf
    memory = [cost_us] * MEMORY
    for move in range(moves):
        if best_us <= enough_us + SAME_US:
            break
        changed = _moved(machine, rounds, run, dice)
        if changed is None:
            continue
        after = machine.run(changed)
        after_us = machine.cost_us(after)
        if after_us <= max(cost_us, memory[move % MEMORY]):
            rounds, run, cost_us = changed, after, after_us
            if not run.missing and cost_us < best_cost_us - SAME_US:
                best, best_us, best_cost_us = tuple(map(tuple, rounds)), run.time_us, cost_us
        memory[move % MEMORY] = cost_us
    return best


def _moved(machine: Machine, rounds: Rounds, run: Replay, dice: Rng) -> Rounds | None:
    """A neighbour of a gossip; None where the move drawn is none."""
    if not run.sent:
        return None
    sent = run.sent[dice.below(len(run.sent))] if dice.below(2) else _critical(run, dice)
    label, message = sent.round, (sent.src, sent.dst)
    kind = dice.below(8)
    changed = [list(messages) for messages in rounds]
    if kind < 5:
        changed[label].remove(message)
    if kind < 2:
        sources = machine.sources[sent.dst]
        new = (sources[dice.below(len(sources))], sent.dst)
    elif kind < 3:
        targets = machine.targets[sent.src]
        new = (sent.src, targets[dice.below(len(targets))])
    elif kind == 3:
        new = message
        label += 1 - 2 * dice.below(2)
    elif kind == 4:
        return changed
    elif kind == 5:
        new = (message[1], message[0]) if machine.latency_us[message[1]][message[0]] < inf else message
        label += dice.below(3) - 1
    elif kind == 6:
        return _swapped(machine, changed, label, message, dice)
    else:
        src = dice.below(len(machine.wanted))
        if not machine.targets[src]:
            return None
        new = (src, machine.targets[src][dice.below(len(machine.targets[src]))])
        if not dice.below(4):
            changed.insert(label, [])
    return _placed(machine, changed, label, new)


def _placed(machine: Machine, rounds: Rounds, label: int, message: Message) -> Rounds | None:
    """The message put in; what its ports have no room for then goes out."""
    if label < 0 or label > len(rounds):
        return None
    if label == len(rounds):
        rounds.append([])
    here = rounds[label]
    if message in here:
        return None
    for side in range(2):
        beside = [other for other in here if other[side] == message[side]]
        if len(beside) == machine.ports:
            here.remove(beside[0])
    here.append(message)
    return rounds


def _swapped(machine: Machine, rounds: Rounds, label: int, message: Message, dice: Rng) -> Rounds | None:
    """Two messages of a round exchange their targets."""
    here = rounds[label]
    (a, b), (c, d) = message, here[dice.below(len(here))]
    latency_us = machine.latency_us
    if a == d or c == b or (a, d) in here or (c, b) in here or max(latency_us[a][d], latency_us[c][b]) == inf:
        return None
    here[here.index((a, b))], here[here.index((c, d))] = (a, d), (c, b)
    return rounds


def _critical(run: Replay, dice: Rng) -> Sent:
    """A message of the chain that a last arrival waits for."""
    chain = list(_chain(run))
    return chain[dice.below(len(chain))]


def _chain(run: Replay) -> Iterator[Sent]:
    """From the last arrival back: what ended when the next began, at one of its ports."""
    sent = max(run.sent, key=lambda message: (message.arrival_us, message.src, message.dst))
    while True:
        yield sent
        now = sent
        before = [
            m for m in run.sent if abs(m.arrival_us - now.start_us) < SAME_US and {m.src, m.dst} & {now.src, now.dst}
        ]
        if not before or now.start_us <= SAME_US:
            return
        sent = before[0]
