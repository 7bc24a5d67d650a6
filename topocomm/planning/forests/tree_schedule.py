"""The Schedule of trees with their rows: chunks, messages with paths, folds and rounds.

A rank sends up its tree in the round after its last child's message, and down in the round after its parent's. All
trees run at once. Slices of a pipelined schedule are one round apart, so each round has every message of every tree,
for one slice or another: the load that the throughput is computed from.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from topocomm.planning.collectives import Collective
from topocomm.planning.forests.interval import IntervalPlan
from topocomm.planning.forests.linear_program.integer_network import Network
from topocomm.planning.forests.linear_program.packing import Pair
from topocomm.planning.forests.tree import Edge, Path, Tree
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.schedule.schedule import NO_PATH, IntTable, Schedule

STAGGER_ROUNDS = 1
"""Rounds between the slices of a pipelined schedule of trees."""


def schedule_of(
    chunks: Sequence[tuple[int, Pair]], collective: Collective, network: Network, paths: PathFinder
) -> Schedule:
    """Return the schedule of chunks that follow each other in the payload.

    Args:
        chunks: (number of rows, trees) in the order of their rows; of allgather and reduce_scatter part by part.
        collective: What the schedule computes.
        network: The machine; rank r is on device r.
        paths: Routes on it: paths other than the cheapest are named in the schedule.
    """
    writer = _Writer(network, paths)
    for number, (_, pair) in enumerate(chunks):
        writer.chunk(number, pair)
    sizes = [rows for rows, _ in chunks]
    return writer.finish(collective, list(zip(accumulate(sizes, initial=0), sizes, strict=False)))


class _Writer:
    """Columns of a schedule that is being written."""

    def __init__(self, network: Network, paths: PathFinder) -> None:
        self.network, self.finder = network, paths
        self.transfers: list[tuple[int, int, int, int, int, int, int]] = []
        self.combines: list[tuple[int, int, int, int]] = []
        self.operands: list[tuple[int, ...]] = []
        self.outputs: list[tuple[int, int, int]] = []
        self.paths: list[tuple[str, ...]] = []
        self.path_of: dict[Path, int] = {}

    def chunk(self, number: int, pair: Pair) -> None:
        """Write messages, folds and outputs of one chunk."""
        slots = [1] * self.network.ends
        slot, round_ = 0, 0
        if isinstance(pair.up, Tree):
            slot, round_ = self._up(number, pair.up, slots)
        elif pair.up is not None:
            slot, round_ = self._merge(number, pair.up, slots)
        self.outputs.append((pair.root, slot, number))
        if pair.down is not None:
            self._down(number, pair.down, slots, slot, round_)

    def finish(self, collective: Collective, ranges: list[tuple[int, int]]) -> Schedule:
        """Return the schedule, sorted by round."""
        transfers, combines = _table(self.transfers, 7), _table(self.combines, 4)
        order = np.argsort(combines[:, 0], kind="stable")
        operands = [self.operands[i] for i in order.tolist()]
        last = max([int(table[:, 0].max()) for table in (transfers, combines) if len(table)], default=-1)
        return Schedule(
            ranks=collective.ranks,
            rounds=last + 1,
            chunks=tuple(ranges),
            inputs=_table([(rank, 0, rank) for rank in collective.contributors], 3),
            outputs=_table(sorted(self.outputs, key=lambda out: (out[0], out[2])), 3),
            transfers=transfers[np.argsort(transfers[:, 0], kind="stable")],
            combines=combines[order],
            operands=np.array([slot for slots in operands for slot in slots], dtype=np.int32),
            operand_starts=np.cumsum([0, *map(len, operands)]).astype(np.int32),
            paths=tuple(self.paths),
            owners=collective.owners(ranges) if collective.name == "allgather" else (),
        )

    def _up(self, number: int, tree: Tree, slots: list[int]) -> tuple[int, int]:
        """Reduce along a tree; return (slot of the result at the root, first round after)."""
        children: dict[int, list[Edge]] = {}
        lowest = {rank: rank for rank in tree.depths}
        for edge in reversed(tree.edges):
            children.setdefault(edge.parent, []).append(edge)
            lowest[edge.parent] = min(lowest[edge.parent], lowest[edge.child])
        held: dict[int, tuple[int, int]] = {}
        for rank in reversed([tree.root, *(edge.child for edge in tree.edges)]):
            below = sorted(children.get(rank, ()), key=lambda edge: lowest[edge.child])
            operands, round_ = [(rank, 0)], 0
            for edge in below:
                slot, at = held[edge.child]
                operands.append((lowest[edge.child], self._send(at, edge.child, slot, rank, slots, number, edge.path)))
                round_ = max(round_, at + 1)
            held[rank] = (self._fold(round_ - 1, rank, [slot for _, slot in sorted(operands)], slots, number), round_)
        return held[tree.root]

    def _merge(self, number: int, plan: IntervalPlan, slots: list[int]) -> tuple[int, int]:
        """Reduce along a plan that merges adjacent ranges; return the same as `_up`."""
        held: list[list[tuple[int, int]]] = []
        for step in plan.steps:
            if step.path is None:
                pieces = [piece for part in step.parts for piece in held[part]] or [(0, 0)]
                held.append(pieces)
                continue
            slot, at = self._folded(number, step.source, held[step.parts[0]], slots)
            path = step.path[::-1]
            held.append([(self._send(at, step.source, slot, step.rank, slots, number, path), at + 1)])
        return self._folded(number, plan.root, held[-1], slots)

    def _folded(self, number: int, rank: int, pieces: list[tuple[int, int]], slots: list[int]) -> tuple[int, int]:
        round_ = max(at for _, at in pieces)
        return self._fold(round_ - 1, rank, [slot for slot, _ in pieces], slots, number), round_

    def _down(self, number: int, tree: Tree, slots: list[int], slot: int, round_: int) -> None:
        held = {tree.root: slot}
        for parent, child, path in tree.edges:
            at = round_ + tree.depths[parent]
            held[child] = self._send(at, parent, held[parent], child, slots, number, path[::-1])
            self.outputs.append((child, held[child], number))

    def _send(self, round_: int, src: int, slot: int, dst: int, slots: list[int], number: int, against: Path) -> int:
        """Send along a path, given from destination to source; return the slot where it arrives."""
        arrived = slots[dst]
        slots[dst] += 1
        self.transfers.append((round_, src, slot, dst, arrived, number, self._path(against)))
        return arrived

    def _fold(self, round_: int, rank: int, operands: list[int], slots: list[int], number: int) -> int:
        if len(operands) == 1:
            return operands[0]
        out = slots[rank]
        slots[rank] += 1
        self.combines.append((round_, rank, out, number))
        self.operands.append(tuple(operands))
        return out

    def _path(self, against: Path) -> int:
        """Return the number of a path given backwards, NO_PATH where it is the cheapest."""
        known = self.path_of.get(against)
        if known is None:
            devices = tuple(self.network.devices[device] for device in reversed(against))
            if self.finder.cheapest(devices[0], devices[-1]).devices == devices:
                known = NO_PATH
            else:
                known = len(self.paths)
                self.paths.append(devices)
            self.path_of[against] = known
        return known


def whole_rows(rows: int, weights: Sequence[float]) -> list[int]:
    """Return rows in proportion to the weights, by largest remainder; ties go to the first."""
    total = sum(weights)
    exact = [rows * weight / total for weight in weights]
    shares = [int(share) for share in exact]
    order = sorted(range(len(weights)), key=lambda i: (shares[i] - exact[i], i))
    for i in order[: rows - sum(shares)]:
        shares[i] += 1
    return shares


def _table(rows: Sequence[tuple[int, ...]], width: int) -> IntTable:
    return np.array(rows, dtype=np.int32).reshape(len(rows), width)
