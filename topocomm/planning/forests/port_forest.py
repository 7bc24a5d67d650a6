"""Trees packed into the ports of endpoints whose pairs have unlike rates, in slices where each message has its turn.

`forest.py` packs trees into links, which all run at once. An endpoint with few ports sends over one link after the
other: here a message also takes the time of a port at both ends, and the packing is the best that ports allow (of a
broadcast the bound by weighted groups: Edmonds 1973). A slice begins a period after the one before; in a period each
message of each tree goes once, for one slice or another, so that what it sends has arrived before its turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil

import numpy as np

from topocomm.planning.collectives import FROM_ROOT, IN_PARTS, TO_ROOT, Collective
from topocomm.planning.forests.forest import COLLECTIVES
from topocomm.planning.forests.linear_program.integer_network import Floats, Ints, Network, network_of
from topocomm.planning.forests.linear_program.packing import FIRST_TURNS, Pair, pack
from topocomm.planning.forests.linear_program.pricers import Gathers, OutTrees, RootedTrees
from topocomm.planning.forests.linear_program.symmetry import no_symmetry
from topocomm.planning.forests.pruning import prune
from topocomm.planning.forests.tree import Tree
from topocomm.planning.forests.tree_schedule import schedule_of, whole_rows
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.schedule.schedule import Schedule
from topocomm.planning.schedule.transforms import sliced

MOST_RANKS = 16
"""Most ranks for which trees are packed into ports."""
MOST_MESSAGES = 500
"""Most messages of a period."""
ACCURACY, MOST_TURNS, LOSS = 2e-3, 300, 0.02
"""Of the packing, and what fewer trees may lose."""
TRIES, MANY_MESSAGES, SPREAD = 16, 128, 0.3
"""Orders of messages of which the one of the shortest period is taken, fewer of more messages, and how they differ."""


@dataclass(frozen=True)
class PortForest:
    """Trees with their rows, and the turns of their messages.

    Attributes:
        chunks: (rows, trees) in the order of the payload.
        turns: The turn in a period of each message, (chunk, source, destination).
        latency_us: Of each message.
        period_us: Time of a period in which all rows go, of one byte each.
    """

    collective: Collective
    network: Network
    paths: PathFinder
    chunks: Sequence[tuple[int, Pair]]
    turns: dict[tuple[int, int, int], int]
    latency_us: dict[tuple[int, int, int], float]
    period_us: float

    @property
    def period(self) -> int:
        """Rounds between slices."""
        return 1 + max(self.turns.values())

    def schedule(self, slices: int, row_bytes: int) -> Schedule:
        """Return the schedule in slices, each sent on half a period after it was sent, and not before it is there."""
        turn_us = self.period_us * row_bytes / slices / self.period
        lags = {each: max(self.period // 2, ceil(us / turn_us)) for each, us in self.latency_us.items()}
        turns = {each: (turn, lags[each]) for each, turn in self.turns.items()}
        return sliced(schedule_of(self.chunks, self.collective, self.network, self.paths, turns), slices, self.period)


def port_forest(collective: Collective, paths: PathFinder, endpoints: Sequence[str], rows: int) -> PortForest | None:
    """Return trees for a commutative operator and endpoints of one port.

    None for collectives that trees do not fit, too many ranks or messages, and where all pairs of endpoints are alike.

    An allreduce is a reduce_scatter and an allgather of equal parts by the same trees.
    """
    if collective.name not in COLLECTIVES or collective.shards or len(set(endpoints)) < len(endpoints):
        return None
    if not 2 < len(endpoints) <= MOST_RANKS or not rows:
        return None
    network = network_of(paths, endpoints)
    if not network.connected or not network.symmetric or not _is_unlike(network):
        return None
    reduces = collective.name not in ("broadcast", "allgather")
    gathers = collective.name not in ("reduce", "reduce_scatter")
    one_root = collective.name in (*FROM_ROOT, *TO_ROOT)
    parts = collective.parts if collective.name in IN_PARTS else (1,) * len(endpoints)
    network = network if gathers else network.transposed()
    symmetry = no_symmetry(network)
    shares = [part / sum(parts) for part in parts]
    pricer: RootedTrees = OutTrees(symmetry, collective.root, 1) if one_root else Gathers(symmetry, shares, 1)
    packing = pack(pricer, ACCURACY, MOST_TURNS, FIRST_TURNS)
    kept = prune(pricer, packing.parts, symmetry, most=None, loss=LOSS)
    trees = [(weight, column.pair.tree) for weight, column in kept]
    paired = [(weight, Pair(tree if reduces else None, tree if gathers else None)) for weight, tree in trees]
    chunks = _chunks(collective, paired, rows)
    if len(chunks) * (len(endpoints) - 1) * (reduces + gathers) > MOST_MESSAGES:
        return None
    return PortForest(collective, network, paths, chunks, *_turns(chunks, network))


def has_unlike_links(paths: PathFinder, endpoints: Sequence[str]) -> bool:
    """Whether some endpoints have links to each other, and these are unlike or join some pairs only."""
    network = network_of(paths, endpoints)
    return bool(network.links) and _is_unlike(network)


def _is_unlike(network: Network) -> bool:
    """Whether links between endpoints have several rates, or some endpoints have none."""
    src, dst = np.array(network.links, dtype=np.int64).T
    direct = network.gb_per_s[(src < network.ends) & (dst < network.ends)]
    return len(direct) > 0 and (len(direct) < network.ends * (network.ends - 1) or bool(direct.min() < direct.max()))


def _chunks(collective: Collective, paired: Sequence[tuple[float, Pair]], rows: int) -> list[tuple[int, Pair]]:
    """Return (rows, trees) of the chunks in the order of the payload."""
    if collective.name not in IN_PARTS:
        shares = whole_rows(rows, [weight for weight, _ in paired])
        return [(n, pair) for n, (_, pair) in zip(shares, paired, strict=True) if n]
    chunks: list[tuple[int, Pair]] = []
    for rank, part in enumerate(collective.parts):
        own = [(weight, pair) for weight, pair in paired if pair.root == rank]
        shares = whole_rows(part, [weight for weight, _ in own]) if part else []
        chunks += [(n, pair) for n, (_, pair) in zip(shares, own, strict=False) if n]
    return chunks


def _turns(
    chunks: Sequence[tuple[int, Pair]], network: Network
) -> tuple[dict[tuple[int, int, int], int], dict[tuple[int, int, int], float], float]:
    """Return turn and latency of each message, (chunk, source, destination), and the period, the shortest of some.

    A message holds both its ports and the slowest links on its way, the first and the last of them.
    """
    latency_us, held, times = dict[tuple[int, int, int], float](), [], []
    for chunk, (rows, pair) in enumerate(chunks):
        for tree, up in ((pair.up, True), (pair.down, False)):
            for parent, child, path in tree.edges if isinstance(tree, Tree) else ():
                links = [network.index[link] for link in pairwise(path)]
                slowest = [link for link in links if network.gb_per_s[link] == network.gb_per_s[links].min()]
                src, dst = (child, parent) if up else (parent, child)
                of_link = 2 * network.ends + len(network.links) * up  # against its direction
                latency_us[chunk, src, dst] = float(sum(network.latency_us[links].tolist()))
                held.append([src, network.ends + dst, of_link + slowest[0], of_link + slowest[-1]])
                times.append(rows / float(network.gb_per_s[slowest[0]]) / 1e3)
    tables = np.array(held, dtype=np.int64), np.array(times)
    count = TRIES * MANY_MESSAGES // max(MANY_MESSAGES, len(times))
    tries = [_in_turn(*tables, np.array(_weights(len(times), number))) for number in range(count)]
    period_us, turns = min(tries, key=lambda made: made[0])
    return dict(zip(latency_us, turns.tolist(), strict=True)), latency_us, period_us


def _weights(count: int, number: int) -> list[float]:
    """Return how much what a message's ports have to do counts: in the first try all alike, then spread by a tenth."""
    return [1 + SPREAD * ((index + 1) * (number * 0.6180339887498949) % 1.0) for index in range(count)]


def _in_turn(held: Ints, time: Floats, weights: Floats) -> tuple[float, Ints]:
    """Return the length of a period, and the turn of each message by what it holds.

    Messages that hold the same have different turns: as soon as one can go, that goes whose ports have most to do.
    """
    places = int(held.max()) + 1
    left = np.bincount(held.ravel(), np.repeat(time, held.shape[1]), places)
    free, last, turns = np.zeros(places), np.zeros(places, dtype=np.int64), np.zeros(len(time), dtype=np.int64)
    waiting = np.arange(len(time))
    while len(waiting):
        own = held[waiting]
        ready = free[own].max(axis=1)
        place = int(np.lexsort((-left[own].max(axis=1) * weights[waiting], ready))[0])
        message = int(waiting[place])
        turns[message] = last[own[place]].max()
        free[own[place]] = ready[place] + time[message]
        last[own[place]] = turns[message] + 1
        left[own[place]] -= time[message]
        waiting = np.delete(waiting, place)
    return float(free.max()), turns
