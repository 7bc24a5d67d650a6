"""Local search on a gossip: move, redirect, remove, add or swap messages.

Worse gossips are accepted if they beat what was accepted some moves ago (late acceptance, Burke and Bykov 2017). There
is no clock, so the same input gives the same gossip. Half of the moves pick a message on the critical path.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from topocomm.planning.algorithms.gossip_schedule import Gossip, Message
from topocomm.planning.search.gossip import SAME_US, Replay, Sent, replay

MEMORY = 60
"""Length of the late-acceptance memory in moves."""

Rounds = list[list[Message]]


class Rng:
    """Pseudo-random numbers (a linear congruential generator, Knuth's MMIX)."""

    def __init__(self, seed: int) -> None:
        self._state = seed * 2 + 1

    def below(self, limit: int) -> int:
        """Return a number from 0 to limit - 1."""
        self._state = (self._state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self._state >> 33) % limit


class Machine:
    """The machine that a gossip runs on, and what ranks want; arguments as in `gossip.replay`."""

    def __init__(self, latency_us: Sequence[Sequence[float]], wanted: Sequence[int], ports: int) -> None:
        self.latency_us = latency_us
        self.wanted = wanted
        self.ports = ports
        ranks = range(len(wanted))
        self.targets = [[b for b in ranks if b != a and latency_us[a][b] < inf] for a in ranks]
        self.sources = [[a for a in ranks if b != a and latency_us[a][b] < inf] for b in ranks]
        self.fastest_us = min((latency_us[a][b] for a in ranks for b in self.targets[a]), default=0.0)

    def run(self, gossip: Gossip) -> Replay:
        """Return the run of a gossip."""
        return replay(gossip, self.latency_us, self.wanted, self.ports)

    def cost_us(self, run: Replay) -> float:
        """Return the cost to be minimised: the time, then the mean end of the ranks; more for what is missing."""
        count = len(self.wanted)
        late_us = max(run.done_us) + sum(run.done_us) / (10 * count)
        return late_us + self.fastest_us * (run.missing / count + (run.missing > 0)) + 1e-6 * len(run.sent)


def improve(machine: Machine, gossip: Gossip, *, moves: int, enough_us: float, seed: int = 1) -> Gossip:
    """Return the best complete gossip met in `moves` moves, or the first of at most `enough_us`."""
    rng = Rng(seed)
    rounds = [list(messages) for messages in gossip]
    run = machine.run(rounds)
    cost_us = machine.cost_us(run)
    best, best_us, best_cost_us = gossip, run.time_us, cost_us if not run.missing else inf
    memory = [cost_us] * MEMORY
    for move in range(moves):
        if best_us <= enough_us + SAME_US:
            break
        changed = _neighbour(machine, rounds, run, rng)
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


def _neighbour(machine: Machine, rounds: Rounds, run: Replay, rng: Rng) -> Rounds | None:
    """Return a neighbour of a gossip; None where the move drawn does not exist."""
    if not run.sent:
        return None
    sent = run.sent[rng.below(len(run.sent))] if rng.below(2) else _critical(run, rng)
    label, message = sent.round, (sent.src, sent.dst)
    kind = rng.below(8)
    changed = [list(messages) for messages in rounds]
    if kind < 5:
        changed[label].remove(message)
    if kind < 2:
        sources = machine.sources[sent.dst]
        new = (sources[rng.below(len(sources))], sent.dst)
    elif kind < 3:
        targets = machine.targets[sent.src]
        new = (sent.src, targets[rng.below(len(targets))])
    elif kind == 3:
        new = message
        label += 1 - 2 * rng.below(2)
    elif kind == 4:
        return changed
    elif kind == 5:
        new = (message[1], message[0]) if machine.latency_us[message[1]][message[0]] < inf else message
        label += rng.below(3) - 1
    elif kind == 6:
        return _swap_targets(machine, changed, label, message, rng)
    else:
        src = rng.below(len(machine.wanted))
        if not machine.targets[src]:
            return None
        new = (src, machine.targets[src][rng.below(len(machine.targets[src]))])
        if not rng.below(4):
            changed.insert(label, [])
    return _insert(machine, changed, label, new)


def _insert(machine: Machine, rounds: Rounds, label: int, message: Message) -> Rounds | None:
    """Return the rounds with the message; messages that its ports have no room for are removed."""
    if label < 0 or label > len(rounds):
        return None
    if label == len(rounds):
        rounds.append([])
    messages = rounds[label]
    if message in messages:
        return None
    for side in range(2):
        beside = [other for other in messages if other[side] == message[side]]
        if len(beside) == machine.ports:
            messages.remove(beside[0])
    messages.append(message)
    return rounds


def _swap_targets(machine: Machine, rounds: Rounds, label: int, message: Message, rng: Rng) -> Rounds | None:
    """Return the rounds after two messages of one round exchanged their targets."""
    messages = rounds[label]
    (a, b), (c, d) = message, messages[rng.below(len(messages))]
    latency_us = machine.latency_us
    if a == d or c == b or (a, d) in messages or (c, b) in messages or max(latency_us[a][d], latency_us[c][b]) == inf:
        return None
    messages[messages.index((a, b))], messages[messages.index((c, d))] = (a, d), (c, b)
    return rounds


def _critical(run: Replay, rng: Rng) -> Sent:
    """Return a message on the critical path: each ended when the next began, at one of its ports."""
    chain = [max(run.sent, key=lambda message: (message.arrival_us, message.src, message.dst))]
    while chain[-1].start_us > SAME_US:
        now = chain[-1]
        before = (m for m in run.sent if abs(m.arrival_us - now.start_us) < SAME_US)
        previous = next((m for m in before if {m.src, m.dst} & {now.src, now.dst}), None)
        if previous is None:
            break
        chain.append(previous)
    return chain[rng.below(len(chain))]
