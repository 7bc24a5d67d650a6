"""The Schedule of trees with their rows: chunks, messages with paths, folds and rounds.

A rank sends up its tree in the round after its last child's message, and down in the round after its parent's. All
trees run at once. Slices of a pipelined schedule are one round apart, so each round has every message of every tree,
for one slice or another: the load that the throughput is computed from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate

from topocomm.planning.collectives import Collective
from topocomm.planning.forests.interval import IntervalPlan
from topocomm.planning.forests.linear_program.integer_network import Network
from topocomm.planning.forests.linear_program.packing import Pair
from topocomm.planning.forests.tree import Edge, Path, Tree
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.schedule.schedule import NO_PATH, Schedule
from topocomm.planning.schedule.schedule_builder import ScheduleBuilder

Turns = Mapping[tuple[int, int, int], tuple[int, int]]
"""Of each message, (chunk, source, destination), its turn in a period, and the rounds before what it brings goes on."""
STAGGER_ROUNDS = 1
"""Rounds between the slices of a pipelined schedule of trees."""


def schedule_of(
    chunks: Sequence[tuple[int, Pair]],
    collective: Collective,
    network: Network,
    paths: PathFinder,
    turns: Turns | None = None,
) -> Schedule:
    """Return the schedule of chunks, (number of rows, trees), that follow each other in the payload.

    Those of allgather and reduce_scatter come part by part. Paths other than the cheapest are named in the schedule.
    With `turns` a message goes in the first round of its turn from when what it sends may go on.
    """
    sizes = [rows for rows, _ in chunks]
    ranges = tuple(zip(accumulate(sizes, initial=0), sizes, strict=False))
    owners = collective.input_owners(ranges)
    builder = ScheduleBuilder(collective.ranks, ranges, collective.contributors, owners)
    writer = _Writer(builder, network, paths, turns or {})
    for number, (_, pair) in enumerate(chunks):
        writer.chunk(number, pair)
    return replace(writer.builder.build(), paths=tuple(writer.paths))


class _Writer:
    """A schedule that is being written, and the paths of its messages that are not the cheapest."""

    def __init__(self, builder: ScheduleBuilder, network: Network, finder: PathFinder, turns: Turns) -> None:
        self.builder, self.network, self.finder = builder, network, finder
        self.turns, self.period = turns, 1 + max((turn for turn, _ in turns.values()), default=0)
        self.number = 0
        """The chunk."""
        self.paths: list[tuple[str, ...]] = []
        self.path_of: dict[Path, int] = {}

    def chunk(self, number: int, pair: Pair) -> None:
        """Write messages, folds and outputs of one chunk."""
        self.number, self.builder = number, replace(self.builder)  # slots are numbered anew in each chunk
        slot, round_ = 0, 0
        if isinstance(pair.up, Tree):
            slot, round_ = self._up(pair.up)
        elif pair.up is not None:
            slot, round_ = self._merge(pair.up)
        self.builder.output(pair.root, slot, chunk=number)
        if pair.down is not None:
            known = {pair.root: (slot, round_)}
            for parent, child, path in pair.down.edges:
                slot, ready = known[parent]
                at, there = self._when(ready, parent, child)
                known[child] = self._send(at, parent, slot, child, path[::-1]), there
                self.builder.output(child, known[child][0], chunk=number)

    def _when(self, ready: int, src: int, dst: int) -> tuple[int, int]:
        """Return the first round of the message's turn from when it could go, and the one from which it is there."""
        turn, lag = self.turns.get((self.number, src, dst), (ready, 0))
        at = ready + (turn - ready) % self.period
        return at, at + 1 + lag

    def _up(self, tree: Tree) -> tuple[int, int]:
        """Reduce along a tree; return (slot of the result at the root, first round after)."""
        children: dict[int, list[Edge]] = {}
        lowest = {rank: rank for rank in tree.depths}
        for edge in reversed(tree.edges):
            children.setdefault(edge.parent, []).append(edge)
            lowest[edge.parent] = min(lowest[edge.parent], lowest[edge.child])
        results: dict[int, tuple[int, int]] = {}
        for rank in reversed([tree.root, *(edge.child for edge in tree.edges)]):
            below = sorted(children.get(rank, ()), key=lambda edge: lowest[edge.child])
            operands, round_ = [(rank, 0)], 0
            for edge in below:
                slot, ready = results[edge.child]
                at, there = self._when(ready, edge.child, rank)
                operands.append((lowest[edge.child], self._send(at, edge.child, slot, rank, edge.path)))
                round_ = max(round_, there)
            slots = [slot for _, slot in sorted(operands)]
            results[rank] = self.builder.fold(round_ - 1, rank, slots, chunk=self.number), round_
        return results[tree.root]

    def _merge(self, plan: IntervalPlan) -> tuple[int, int]:
        """Reduce along a plan that merges adjacent ranges; return the same as `_up`."""
        pieces_of: list[list[tuple[int, int]]] = []
        for step in plan.steps:
            if step.path is None:
                pieces_of.append([piece for part in step.parts for piece in pieces_of[part]] or [(0, 0)])
                continue
            slot, at = self._folded(step.source, pieces_of[step.parts[0]])
            pieces_of.append([(self._send(at, step.source, slot, step.rank, step.path[::-1]), at + 1)])
        return self._folded(plan.root, pieces_of[-1])

    def _folded(self, rank: int, pieces: list[tuple[int, int]]) -> tuple[int, int]:
        round_ = max(at for _, at in pieces)
        return self.builder.fold(round_ - 1, rank, [slot for slot, _ in pieces], chunk=self.number), round_

    def _send(self, round_: int, src: int, slot: int, dst: int, against: Path) -> int:
        """Send along a path, given from destination to source; return the slot where it arrives."""
        if against not in self.path_of:
            devices = tuple(self.network.devices[device] for device in reversed(against))
            is_cheapest = self.finder.cheapest(devices[0], devices[-1]).devices == devices
            self.path_of[against] = NO_PATH if is_cheapest else len(self.paths)
            if not is_cheapest:
                self.paths.append(devices)
        return self.builder.send(round_, src, slot, dst, chunk=self.number, path=self.path_of[against])


def whole_rows(rows: int, weights: Sequence[float]) -> list[int]:
    """Return rows in proportion to the weights, by largest remainder; ties go to the first."""
    total = sum(weights)
    exact = [rows * weight / total for weight in weights]
    shares = [int(share) for share in exact]
    order = sorted(range(len(weights)), key=lambda i: (shares[i] - exact[i], i))
    for i in order[: rows - sum(shares)]:
        shares[i] += 1
    return shares
