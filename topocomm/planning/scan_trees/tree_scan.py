"""Scan and exscan up and down a tree of ranks for every chunk (Blelloch 1990; Sanders and Traeff 2006, in slices)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from topocomm.planning.routing.routes import Ints
from topocomm.planning.scan_trees.hop_clock import Clock, hop_rounds, steady
from topocomm.planning.scan_trees.rank_trees import NO_RANK, ScanTrees
from topocomm.planning.schedule.schedule import NO_PATH, IntTable, Schedule, row_keys, stable_order
from topocomm.planning.schedule.schedule_builder import schedule_of_columns, table_of

NO_SLOT, FIRST_RELAYED = -1, -2
"""Marks of a value that does not exist, and of the first on a relay, before these have slots."""


def tree_scan(
    trees: ScanTrees, chunks: Sequence[tuple[int, int]], *, own: bool, clock: Clock | None = None
) -> tuple[Schedule, int]:
    """Return the scan, or without `own` the exscan, and the rounds from a slice to the next one.

    Args:
        trees: A tree for every chunk.
        chunks: (first row, rows) of every chunk.
        own: Whether the result of a rank holds its own value.
        clock: When messages leave; None: as soon as what they have is there, a round a hop.
    """
    made = _TreeScan(trees, clock or steady(trees))
    return made.schedule(chunks, own=own), made.rounds.period


class _TreeScan:
    """Columns of all trees at once.

    Slots of a rank: 0 its value; what its children send; their fold with it; what comes before all these; that with the
    first, the first two, ... of them; what earlier roots tell it; and what it carries for others.
    """

    def __init__(self, trees: ScanTrees, clock: Clock) -> None:
        self.nodes = nodes = trees.nodes
        self.up_relays, self.down_relays = (ways.reshape(len(nodes.rank), -1) for ways in (trees.up, trees.down))
        self.rounds = hop_rounds(nodes, trees, clock)
        most = int(nodes.items.max()) - 1
        self.total, self.before, self.prefix = 1 + most, 2 + most, 3 + most
        self.told = self.prefix + most + 1
        self.relay_slot, self.relayed = self.told + nodes.roots - 1, 0
        self.transfers: list[IntTable] = []
        self.combines: list[IntTable] = []
        self.operands: list[Ints] = []

    def schedule(self, chunks: Sequence[tuple[int, int]], *, own: bool) -> Schedule:
        """Write the folds and messages of all nodes, and return the schedule."""
        of = self.nodes
        whole = self._whole()
        self._send_up(whole)
        told = self._send_across(whole)
        held = np.where(of.hears | of.is_told, self.before, NO_SLOT)
        known = np.where(of.hears, self.rounds.down.max(axis=1), told)
        """The round in which a node has what it holds."""
        result = np.where(of.own_item == 0, held, NO_SLOT)
        some = np.arange(len(of.items))
        for place in range(int(of.items.max())):
            nodes = some = some[of.items[some] > place]
            is_own, after_own = of.own_item[nodes] == place, of.own_item[nodes] < place
            slot = np.where(is_own, 0, 1 + place - after_own)
            child = nodes.copy()
            child[~is_own] = of.children[(of.first_child[nodes] + place - after_own)[~is_own]]
            self._tell(nodes[~is_own], child[~is_own], held)
            if not own:
                result[nodes[is_own]] = held[nodes[is_own]]
            there = is_own | of.goes_up[child]  # not the last child: nothing comes after it
            nodes, slot, is_own, child = (column[there] for column in (nodes, slot, is_own, child))
            arrived = np.where(is_own, -1, self.rounds.up[child].max(axis=1))
            known[nodes] = np.maximum(known[nodes], arrived)
            first = held[nodes] == NO_SLOT
            held[nodes[first]] = slot[first]
            folds = ~first & self._needed(nodes, place, own)
            self._fold(nodes[folds], known[nodes[folds]], self.prefix + place, held[nodes[folds]], slot[folds])
            held[nodes[folds]] = self.prefix + place
            if own:
                result[nodes[is_own]] = held[nodes[is_own]]
        return self._written(chunks, result)

    def _needed(self, nodes: Ints, place: int, own: bool) -> Ints:
        """Whether nodes need what comes before them with items up to this place: to tell or send it, or themselves."""
        of = self.nodes
        sent = of.sends[nodes] & (of.low[nodes] == 0)
        mine: Ints = (of.items[nodes] - 1 > place) | sent | (own & (of.own_item[nodes] == place))
        return mine

    def _whole(self) -> Ints:
        """The slot of the fold of all below each node that sends it; it is folded when all of them have sent theirs."""
        of = self.nodes
        single, first = of.items == 1, of.low == 0
        nodes = np.flatnonzero(of.goes_up)
        heard = np.full(len(of.parent), -1)
        np.maximum.at(heard, of.parent[nodes], self.rounds.up[nodes].max(axis=1))
        folding = np.flatnonzero(of.sends & ~single & ~first)
        for count in np.unique(of.items[folding]):
            some = folding[of.items[folding] == count]
            place = np.arange(count)
            own = of.own_item[some][:, None]
            operands = np.where(place == own, 0, 1 + place - (place > own))
            self._combine(heard[some], some, self.total, operands)
        return np.where(single, 0, np.where(first, self.prefix + of.items - 1, self.total))

    def _send_up(self, whole: Ints) -> None:
        """Every node that something comes after sends its parent the fold of all below it."""
        of = self.nodes
        nodes = np.flatnonzero(of.goes_up)
        parent = of.parent[nodes]
        to = 1 + of.item[nodes] - (of.own_item[parent] < of.item[nodes])
        self._send(self.rounds.up[nodes], nodes, whole[nodes], parent, to, self.up_relays[nodes])

    def _send_across(self, whole: Ints) -> Ints:
        """Every root sends later ones the fold of its tree; return when each has, and folds, what comes before its own.

        It is -1 for nodes that no root tells.
        """
        of = self.nodes
        src, dst = of.tells
        told = np.full(len(of.parent), -1)
        np.maximum.at(told, dst, self.rounds.across)
        earlier = np.bincount(dst, minlength=len(told))
        place = np.zeros_like(told)
        place[of.levels[0]] = np.tile(np.arange(of.roots), len(of.levels[0]) // of.roots)
        to = np.where(earlier[dst] == 1, self.before, self.told + place[src])
        self._send(self.rounds.across[:, None], src, whole[src], dst, to, np.zeros((len(src), 0), np.int64))
        for count in range(2, of.roots):
            some = np.flatnonzero(earlier == count)
            self._combine(told[some], some, self.before, np.tile(self.told + np.arange(count), (len(some), 1)))
        return told

    def _tell(self, nodes: Ints, child: Ints, held: Ints) -> None:
        """Nodes tell these children what comes before them."""
        hear = self.nodes.hears[child]
        nodes, child = nodes[hear], child[hear]
        self._send(self.rounds.down[child], nodes, held[nodes], child, self.before, self.down_relays[child])

    def _fold(self, nodes: Ints, round_: Ints, out: int, left: Ints, right: Ints) -> None:
        self._combine(round_, nodes, out, np.stack([left, right], axis=1))

    def _combine(self, round_: Ints, nodes: Ints, out: int, operands: Ints) -> None:
        columns = np.maximum(round_, 0), self.nodes.rank[nodes], out, self.nodes.chunk[nodes]
        self.combines.append(table_of(*columns))
        self.operands.append(operands)

    def _send(self, rounds: Ints, nodes: Ints, slot: Ints, to: Ints, to_slot: Ints | int, relays: Ints) -> None:
        """Send from node to node over relays, where the value gets a slot that `_numbered` finds."""
        src, sent, hop = self.nodes.rank[nodes], slot, np.zeros(len(nodes), np.int64)
        for relay in relays.T:
            some = np.flatnonzero(relay != NO_RANK)
            held = FIRST_RELAYED - self.relayed - np.arange(len(some))
            self.relayed += len(some)
            self._move(rounds[some, hop[some]], src[some], sent[some], relay[some], held, nodes[some])
            src, sent = src.copy(), sent.copy()
            src[some], sent[some] = relay[some], held
            hop[some] += 1
        self._move(rounds[np.arange(len(nodes)), hop], src, sent, self.nodes.rank[to], to_slot, nodes)

    def _move(self, round_: Ints, src: Ints, slot: Ints, dst: Ints, to_slot: Ints | int, nodes: Ints) -> None:
        columns = round_, src, slot, dst, to_slot, self.nodes.chunk[nodes], NO_PATH
        self.transfers.append(table_of(*columns))

    def _numbered(self) -> IntTable:
        """All messages; what a relay holds of a chunk has the slots after those of its own tree."""
        moves = np.concatenate([np.zeros((0, 7), np.int32), *self.transfers])
        arrived = moves[moves[:, 4] <= FIRST_RELAYED]
        arrived = arrived[np.lexsort((arrived[:, 5], arrived[:, 3]))]
        place = arrived[:, 3].astype(np.int64) * (1 + int(self.nodes.chunk.max())) + arrived[:, 5]
        slots = np.empty(len(arrived), np.int64)
        slots[FIRST_RELAYED - arrived[:, 4]] = self.relay_slot + np.arange(len(place)) - np.searchsorted(place, place)
        for column in (2, 4):
            held = moves[:, column] <= FIRST_RELAYED
            moves[held, column] = slots[FIRST_RELAYED - moves[held, column]]
        return moves

    def _written(self, chunks: Sequence[tuple[int, int]], result: Ints) -> Schedule:
        """Messages of a round go to the nearest rank after their own first, so that no two wait for one port."""
        moves, of = self._numbered(), self.nodes
        nearest = (moves[:, 3] - moves[:, 1]) % of.ranks
        down = moves[:, 4] == self.before
        moves = moves[stable_order(row_keys(moves[:, 0], down.view(np.int8), nearest, moves[:, 1]))]
        some = np.flatnonzero(result != NO_SLOT)
        return schedule_of_columns(
            of.ranks,
            chunks,
            outputs=np.stack([of.rank[some], result[some], of.chunk[some]], axis=1),
            transfers=moves,
            combines=np.concatenate([np.zeros((0, 4), np.int32), *self.combines]),
            operands=self.operands,
        )
