"""Beam search over rounds of messages, with the clocks of the `alpha` model.

A state holds what every rank knows, since when, and when its ports are free. A child adds one round: per port a
matching by new knowledge, among messages of at most some latency (its class). A sequence of classes is the outline of a
hierarchical plan: rounds inside, rounds across. States that used each class equally often compete; kept are those from
which most can be known one message later, whose ranks know equal sets, and whose clocks are early. Matchings vary by
`message_weights`: hashes as noise, and shifts inside and between clusters of near ranks, which noise would not find.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

import numpy as np
from numpy.typing import NDArray

from topocomm.planning.algorithms.gossip_schedule import Gossip
from topocomm.planning.search.dissemination_bound import clusters, distances
from topocomm.planning.search.gossip import SAME_US
from topocomm.planning.search.message_weights import (
    NOISES,
    Ints,
    MessageWeights,
    Times,
    Words,
    hashed,
    mix,
    noise_tables,
    shift_tables,
    weights_of,
)

CLASSES = 4
"""Most classes of latency."""
CELLS = 4_000_000
"""Most children of a round times pairs of ranks: bounds the memory."""
FINISHED = 8
"""Most gossips returned."""
PARTITIONS = 3
"""Most partitions into clusters whose shifts are tried."""
RELAYED = 0.25
"""Weight of a contribution that a rank can only pass on."""


@dataclass(frozen=True)
class Problem:
    """The search problem as arrays.

    Attributes:
        latency_us: float64 [n, n], infinite where no route exists and on the diagonal.
        wanted: uint64 [n, w]: bit a of row b is set where rank b needs the contribution of rank a.
        useful: uint64 [w]: contributions that another rank wants.
        ports: Messages that a rank sends, and receives, at once.
        partitions: Cluster number by rank, of partitions into clusters of near ranks, coarse first; none where
            latencies have many different values.
    """

    latency_us: Times
    wanted: Words
    useful: Words
    ports: int
    partitions: tuple[Ints, ...]


@dataclass(frozen=True)
class States:
    """A batch of states.

    Attributes:
        known: Contributions that each rank knows, uint64 [batch, n, w].
        ready_us: Arrival of the last of them, float64 [batch, n].
        sending_us: When each send port is free, float64 [batch, n, ports], the earliest first.
        receiving_us: The same of the receive ports.
        word: How often each class was used, as digits, int64 [batch].
        sources: Source of each message by destination, -1 for none, int16 [batch, rounds, ports, n].
    """

    known: Words
    ready_us: Times
    sending_us: Times
    receiving_us: Times
    word: Ints
    sources: NDArray[np.int16]

    def at(self, index: Ints) -> States:
        """Return the states of these numbers."""
        return States(*(column[index] for column in vars(self).values()))


def problem_of(latency_us: Times, wants: NDArray[np.bool_], ports: int) -> Problem:
    """Return the arrays of a problem; arguments as in `gossip_search.search_gossip`."""
    routes = latency_us.copy()
    np.fill_diagonal(routes, inf)
    asked: NDArray[np.bool_] = np.any(wants & ~np.eye(len(wants), dtype=bool), axis=1)
    classes = np.unique(np.rint(latency_us[np.isfinite(latency_us)] * 1e6))
    partitions = clusters(distances(latency_us))[:PARTITIONS] if len(classes) <= 2 * CLASSES else []
    return Problem(routes, _packed(wants.T), _packed(asked[None])[0], ports, tuple(partitions))


def beam_search(
    problem: Problem, *, width: int, variants: int, below_us: float, turn: int = 0
) -> list[tuple[float, Gossip]]:
    """Return (upper bound of the time in us, gossip) of gossips faster than `below_us`, the best first.

    `width` states are kept per round, with `variants` children per class of latency; `turn` chooses tables of noise.
    """
    count = len(problem.wanted)
    free, ready_us, word = np.zeros((1, count, problem.ports)), np.zeros((1, count)), np.zeros(1, np.int64)
    no_sources = np.full((1, 0, problem.ports, count), -1, np.int16)
    states = States(_packed(np.eye(count, dtype=bool))[None], ready_us, free, free, word, no_sources)
    noise, shifts = noise_tables(count), shift_tables(count, problem.partitions)
    values = np.sort(problem.latency_us[np.isfinite(problem.latency_us)])
    steps = values[np.concatenate([np.diff(values) > SAME_US, [True]])]
    if len(steps) > CLASSES:
        steps = np.unique(values[[len(values) * (i + 1) // CLASSES - 1 for i in range(CLASSES)]])
    limits: list[float] = steps.tolist()  # largest latency of each class: all where there are few, else quantiles
    gossips: list[tuple[float, Gossip]] = []
    for depth in range(4 * count):
        chosen = noise[(np.arange(variants) + depth * variants + 13 * turn) % NOISES]
        weights = weights_of(problem.latency_us, limits, chosen, shifts)
        states = _children(problem, states, limits, weights)
        done = ~(problem.wanted & ~states.known).any(axis=(1, 2))
        times = states.ready_us.max(axis=1)
        ended = np.flatnonzero(done & (times < below_us - SAME_US))
        first = ended[np.argsort(times[ended], kind="stable")][:FINISHED].tolist()
        gossips += [(float(times[index]), _gossip(states.sources[index])) for index in first]
        gossips = sorted(gossips, key=lambda pair: pair[0])[:FINISHED]
        if len(gossips) == FINISHED:
            below_us = gossips[-1][0]
        states = _kept(problem, states.at(np.flatnonzero(~done)), width, below_us)
        if not len(states.word):
            break
    return gossips


def _children(problem: Problem, states: States, limits: list[float], weights: MessageWeights) -> States:
    """Return the states after one more round, every kind of child of every state."""
    batch, count = states.ready_us.shape
    kinds = weights.kinds
    each = min(len(kinds), max(len(limits), CELLS // (batch * count * count)))
    parent = np.repeat(np.arange(batch), each)
    # Where not all kinds can be tried, every state tries others, spread over all.
    turn = (np.arange(batch)[:, None] * 7 + np.arange(each) * len(kinds) // each) % len(kinds)
    level, variant = kinds[turn.ravel()].T
    outside = np.stack([~(problem.latency_us <= limit + SAME_US) for limit in limits])
    states_before = states.at(parent)
    states_after = states_before
    chosen = np.full((len(parent), problem.ports, count), -1, np.int16)
    for port in range(problem.ports):
        ports_us = np.maximum(states_after.sending_us[:, :, None, 0], states_after.receiving_us[:, None, :, 0])
        arrival_us: Times = np.maximum(states_before.ready_us[:, :, None], ports_us) + problem.latency_us
        early = (arrival_us - arrival_us.min(axis=(1, 2), keepdims=True)) / limits[0]
        gain = _gain(problem, states_before.known, states_after.known)
        with np.errstate(divide="ignore", invalid="ignore"):
            weight = np.log2(gain) - weights.early_weight[variant, None, None] * early
            weight += (weights.table_weight[:, None, None] * weights.table)[variant]
        weight[outside[level] | (gain <= 0)] = -inf
        chosen[:, port] = _matching(weight, weights.mutual[variant])
        states_after = _after_messages(states_before, states_after, chosen[:, port], arrival_us)
    moved = (chosen >= 0).any(axis=(1, 2))
    sources = np.concatenate([states_before.sources, chosen[:, None]], axis=1)
    return replace(states_after, sources=sources, word=states_after.word + 64**level).at(np.flatnonzero(moved))


def _gain(problem: Problem, sources: Words, targets: Words) -> Times:
    """Return the weighted number of contributions that each source would add to each target, float64 [batch, n, n]."""
    news = sources[:, :, None] & ~targets[:, None]
    asked: Times = np.bitwise_count(news & problem.wanted).sum(axis=-1, dtype=np.float64)
    if (problem.wanted == problem.useful).all():
        return asked
    relayed: Times = np.bitwise_count(news & problem.useful & ~problem.wanted).sum(axis=-1, dtype=np.float64)
    return asked + RELAYED * relayed


def _matching(weight: Times, mutual: NDArray[np.bool_]) -> NDArray[np.int16]:
    """Return greedy matchings as source by destination, int16 [batch, n]; where `mutual`, pairs that exchange first."""
    batch, count = weight.shape[:2]
    sources = np.full((batch, count), -1, np.int16)
    pairs = np.flatnonzero(mutual)
    both = weight[pairs] + weight[pairs].swapaxes(1, 2)
    _take(both, sources, pairs, exchange=True)
    for direction in range(2):
        index, rank = np.nonzero(sources[pairs] >= 0)
        if direction:
            weight[pairs[index], :, rank] = -inf
        else:
            weight[pairs[index], sources[pairs[index], rank]] = -inf
    _take(weight, sources, np.arange(batch), exchange=False)
    return sources


def _take(weight: Times, sources: NDArray[np.int16], which: Ints, *, exchange: bool) -> None:
    """Take the heaviest message (or exchange) of each state whose ports are free, until none is left."""
    count = sources.shape[1]
    while len(which):
        flat = weight.reshape(len(which), -1)
        best = flat.argmax(axis=1)
        rows = np.arange(len(which))
        open_ = np.flatnonzero(flat[rows, best] > -inf)
        if not len(open_):
            return
        if 2 * len(open_) < len(which):
            weight, which, best = weight[open_], which[open_], best[open_]
            rows = open_ = np.arange(len(which))
        src, dst = np.divmod(best[open_], count)
        sources[which[open_], dst] = src
        weight[open_, src] = -inf
        weight[open_, :, dst] = -inf
        if exchange:
            sources[which[open_], src] = dst
            weight[open_, dst] = -inf
            weight[open_, :, src] = -inf


def _after_messages(before: States, after: States, sources: NDArray[np.int16], arrival_us: Times) -> States:
    """Return the states after messages, at most one per destination, with what their source knew before."""
    index, dst = np.nonzero(sources >= 0)
    src = sources[index, dst]
    at_us = arrival_us[index, src, dst]
    known, ready_us = after.known.copy(), after.ready_us.copy()
    known[index, dst] |= before.known[index, src]
    ready_us[index, dst] = np.maximum(ready_us[index, dst], at_us)
    sending_us, receiving_us = after.sending_us.copy(), after.receiving_us.copy()
    sending_us[index, src, 0] = at_us
    receiving_us[index, dst, 0] = at_us
    sending_us.sort(axis=2)
    receiving_us.sort(axis=2)
    return replace(after, known=known, ready_us=ready_us, sending_us=sending_us, receiving_us=receiving_us)


def _kept(problem: Problem, states: States, width: int, below_us: float) -> States:
    """Return the best states, in equal shares of every word; those that cannot end below the limit are left out."""
    states = states.at(np.flatnonzero(_end_us(problem, states) < below_us - SAME_US))
    if not len(states.word):
        return states
    scores = _scores(problem, states)
    clocks = np.rint(states.ready_us * 1e6).astype(np.uint64)
    rows = mix(hashed(states.known) ^ mix(clocks + np.uint64(7)))
    factors = mix(np.arange(rows.shape[1], dtype=np.uint64) + np.uint64(1)) | np.uint64(1)
    hashes: Words = (rows * factors).sum(axis=1, dtype=np.uint64)  # of what ranks know, and since when
    order = np.lexsort((np.arange(len(scores)), -scores, states.word))
    same = (states.word[order][1:] == states.word[order][:-1]) & (hashes[order][1:] == hashes[order][:-1])
    order = order[np.concatenate([[True], ~same])]
    _, starts, sizes = np.unique(states.word[order], return_index=True, return_counts=True)
    place = np.arange(len(order)) - np.repeat(starts, sizes)
    ends_us = _end_us(problem, states)[order]
    return states.at(np.sort(order[np.lexsort((np.arange(len(order)), ends_us, place))[:width]]))


def _end_us(problem: Problem, states: States) -> Times:
    """Return a bound on the end: a message multiplies the largest known set by at most K+1."""
    missing = np.bitwise_count(problem.wanted & ~states.known).sum(axis=2)
    most = np.bitwise_count(states.known).sum(axis=2).max(axis=1, keepdims=True)
    messages = np.ceil(np.log2(missing / most + 1.0) / np.log2(problem.ports + 1.0) - SAME_US)
    ends_us = np.where(missing > 0, states.receiving_us[:, :, 0] + messages * problem.latency_us.min(axis=0).min(), 0.0)
    latest_us: Times = np.maximum(ends_us.max(axis=1), states.ready_us.max(axis=1))
    return latest_us


def _scores(problem: Problem, states: States) -> Times:
    """Return the scores of states among those of their word.

    They count what ranks can know one message later, what clusters know together, how many ranks know the same, and how
    early the clocks are.
    """
    gain = _gain(problem, states.known, states.known)
    gain[:, ~np.isfinite(problem.latency_us)] = 0.0
    held = np.bitwise_count(states.known).sum(axis=2)
    reach = np.log2(held + gain.max(axis=1)).mean(axis=1)
    rows = np.sort(hashed(states.known), axis=1)
    different = 1 + (rows[:, 1:] != rows[:, :-1]).sum(axis=1)
    clocks = (states.ready_us.mean(axis=1) + states.ready_us.max(axis=1)) / 2
    joint = np.zeros(len(reach))
    for label in problem.partitions:
        for name in np.unique(label).tolist():
            inside = np.bitwise_or.reduce(states.known[:, label == name], axis=1)
            joint += np.log2(np.bitwise_count(inside).sum(axis=1)) * ((label == name).sum() / held.shape[1])
    worth: Times = reach + joint - different / (4.0 * held.shape[1]) - 0.25 * clocks / float(problem.latency_us.min())
    return worth


def _packed(table: NDArray[np.bool_]) -> Words:
    """Return the rows of a boolean table as uint64 words, column c as bit c."""
    count = table.shape[1]
    wide = np.zeros((len(table), -(-count // 64) * 64), bool)
    wide[:, :count] = table
    return np.packbits(wide, axis=1, bitorder="little").view("<u8").astype(np.uint64)


def _gossip(sources: NDArray[np.int16]) -> Gossip:
    return tuple(
        tuple((src, dst) for layer in layers for dst, src in enumerate(layer) if src >= 0)
        for layers in sources.tolist()
    )
