"""Proof that a Schedule does what its collective promises, by exact symbolic replay.

Every value is an interned expression tree over the contributions: the ranks' values, in canonical order ranges of
virtual shards. Two values are equal as expressions if and only if they have the same id, so `uniform` is decided by
comparing integers and nothing is hashed in place of proof. Each tree knows the contributions it holds: an interval
where they are contiguous (O(1) a combine), a bit set otherwise; a pair of trees is merged once, whatever ranks do it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from topocomm.errors import PlanError
from topocomm.planning.canonical import canonical_nodes, canonical_split
from topocomm.planning.collectives import Collective
from topocomm.planning.paths import PathFinder
from topocomm.planning.schedule import NO_PATH, Combine, Schedule, Transfer, input_pieces


@dataclass(frozen=True)
class Proof:
    """What was proved of a Schedule; a False is a property the Schedule does not have (an invalid one raises)."""

    complete: bool
    each_contribution_once: bool
    order_kept: bool
    uniform: bool
    ports_respected: bool
    links_exist: bool
    deadlock_free: bool
    canonical_tree: bool = False


def verify(
    schedule: Schedule,
    collective: Collective,
    *,
    paths: PathFinder | None = None,
    endpoints: Sequence[str] = (),
    ports: int = 1,
    serialised: bool = True,
    keep_order: bool = False,
) -> Proof:
    """The proof that `schedule` computes `collective`.

    Every slot read was written before and every slot is written once (so the rounds, run in order with all messages of
    a round posted before any is awaited, cannot deadlock); an input exists for every chunk, of an allgather for the
    chunks of the rank's own part only; every output holds the contributions that the collective says, each exactly
    once; all ranks that receive one result evaluate one expression tree (in canonical order, that one); and where
    `paths` and the ranks' `endpoints` are given, each message has a route on the machine.

    Args:
        schedule: What to prove.
        collective: What it must compute.
        paths: Routes on the machine.
        endpoints: Endpoint id of each rank.
        ports: Messages that an endpoint may send, and receive, in one round.
        serialised: The cost model puts messages of a busy port one after the other, so that more than `ports`
            in a round is no violation.
        keep_order: Operands must stand in rank order: the operator does not commute.

    Raises:
        PlanError: The schedule is invalid; the message names round, rank, slot and chunk.
    """
    if schedule.repeat is not None:
        raise PlanError(f"schedule: {schedule.repeat}: pipelined schedules cannot be proved yet")
    replay = _Replay(schedule, collective)
    replay.run()
    order_kept, uniform, canonical = replay.check_outputs()
    if not uniform:
        raise PlanError("schedule: ranks evaluate different expression trees, so their bits could differ")
    if keep_order and not order_kept:
        raise PlanError("schedule: operands do not stand in rank order, which an operator that does not commute needs")
    if collective.shards and not canonical:
        raise PlanError("schedule: a result is not the canonical tree over the virtual shards")
    busiest = _busiest_port(schedule, endpoints)
    if busiest > ports and not serialised:
        raise PlanError(f"schedule: an endpoint has {busiest} messages in one round, {ports} are allowed")
    if paths is not None:
        _check_routes(schedule, paths, endpoints)
    return Proof(
        complete=True,
        each_contribution_once=True,
        order_kept=order_kept,
        uniform=uniform,
        ports_respected=True,
        links_exist=paths is not None,
        deadlock_free=True,
        canonical_tree=canonical,
    )


class Value(NamedTuple):
    """What one slot holds: a tree, and the contributions in it."""

    tree: int
    low: int
    high: int
    in_order: bool = True
    canonical: bool = True
    """Folded as the canonical tree over its contributions is."""
    bits: int | None = None
    """The contributions, one bit each, where they are no interval [low, high)."""

    def members(self) -> int:
        """The contributions, one bit each."""
        return (1 << self.high) - (1 << self.low) if self.bits is None else self.bits


class _Replay:
    """Values of all slots, round by round."""

    def __init__(self, schedule: Schedule, collective: Collective) -> None:
        self.schedule = schedule
        self.collective = collective
        self.values: dict[tuple[int, int, int], Value] = {}
        self.merged: dict[tuple[int, int], Value] = {}
        self.trees = 0
        self._check_columns()
        self.owners = self._check_owners()
        self._load_inputs()

    def run(self) -> None:
        transfers, combines = self.schedule.transfer_list(), self.schedule.combine_list()
        t = c = 0
        for round_ in range(self.schedule.rounds):
            first = t
            while t < len(transfers) and transfers[t].round == round_:
                t += 1
            arriving = [self._read(m.src, m.src_slot, m.chunk, m) for m in transfers[first:t]]
            for move, value in zip(transfers[first:t], arriving, strict=True):
                self._write(move.dst, move.dst_slot, move.chunk, value, move)
            while c < len(combines) and combines[c].round == round_:
                self._combine(combines[c])
                c += 1

    def check_outputs(self) -> tuple[bool, bool, bool]:
        """(order kept, uniform, canonical); raises where an output is missing, extra or incomplete."""
        ranks, receives = range(self.schedule.ranks), self.collective.receives
        wanted = {(rank, chunk) for chunk, owner in enumerate(self.owners) for rank in ranks if receives(rank, owner)}
        order_kept, canonical = True, bool(self.collective.shards)
        trees: dict[tuple[int, range], set[int]] = {}
        for rank, slot, chunk in self.schedule.outputs.tolist():
            if (rank, chunk) not in wanted:
                raise PlanError(f"schedule: rank {rank} chunk {chunk} is output twice or belongs to no result")
            wanted.remove((rank, chunk))
            value = self.values.get((rank, slot, chunk))
            if value is None:
                raise PlanError(f"schedule: output of rank {rank} chunk {chunk} is slot {slot}, which nothing wrote")
            expected = self.collective.expected(rank, self.owners[chunk])
            self._check_complete(rank, chunk, value, expected)
            order_kept &= value.in_order
            canonical &= value.canonical
            trees.setdefault((chunk, expected), set()).add(value.tree)
        if wanted:
            rank, chunk = min(wanted)
            raise PlanError(f"schedule: rank {rank} has no output for chunk {chunk}")
        return order_kept, all(len(same) == 1 for same in trees.values()), canonical

    def _check_columns(self) -> None:
        schedule = self.schedule
        if schedule.ranks != self.collective.ranks:
            raise PlanError(f"schedule: {schedule.ranks} ranks, the collective has {self.collective.ranks}")
        chunks = len(schedule.chunks)
        for name, column, limit in (
            ("transfer source", schedule.transfers[:, 1], schedule.ranks),
            ("transfer destination", schedule.transfers[:, 3], schedule.ranks),
            ("transfer chunk", schedule.transfers[:, 5], chunks),
            ("combine rank", schedule.combines[:, 1], schedule.ranks),
            ("combine chunk", schedule.combines[:, 3], chunks),
            ("input rank", schedule.inputs[:, 0], schedule.ranks),
        ):
            if column.size and (int(column.min()) < 0 or int(column.max()) >= limit):
                raise PlanError(f"schedule: {name} is outside 0..{limit - 1}")
        row = 0
        for chunk, (first, rows) in enumerate(schedule.chunks):
            if first != row or rows < 0:
                raise PlanError(f"schedule: chunk {chunk} starts at row {first}, expected {row}: chunks must abut")
            row += rows
        if self.collective.parts and row != sum(self.collective.parts):
            raise PlanError(f"schedule: the chunks have {row} rows, the parts {sum(self.collective.parts)}")

    def _check_owners(self) -> tuple[int, ...] | tuple[None, ...]:
        """Whose part each chunk lies in, None where the collective has no parts."""
        schedule = self.schedule
        owners = self.collective.owners(schedule.chunks)
        if schedule.owners != (owners if self.collective.name == "allgather" else ()):
            raise PlanError(
                f"schedule: its inputs are those of owners {schedule.owners}, the collective's are {owners}"
            )
        return owners or (None,) * len(schedule.chunks)

    def _load_inputs(self) -> None:
        leaves = self._canonical_leaves() if self.collective.shards else self._rank_leaves()
        for rank in {rank for rank, _ in leaves}:
            for slot, chunk in input_pieces(self.schedule, rank):
                self._write(rank, slot, chunk, leaves[rank, slot], None)

    def _rank_leaves(self) -> dict[tuple[int, int], Value]:
        """Each rank's own value, by (rank, slot)."""
        leaves: dict[tuple[int, int], Value] = {}
        contributors = set(self.collective.contributors)
        for rank, slot, who in self.schedule.inputs.tolist():
            if rank != who or who not in contributors:
                raise PlanError(
                    f"schedule: input of rank {rank} claims the contribution of rank {who}; expected each of "
                    f"{_ranks(self.collective.contributors)} once, at home"
                )
            contributors.remove(who)
            leaves[rank, slot] = Value(self._new_tree(), who, who + 1)
        if self.schedule.nodes:
            raise PlanError("schedule: it has nodes of virtual shards, but the collective has no shards")
        return leaves

    def _canonical_leaves(self) -> dict[tuple[int, int], Value]:
        """The nodes of virtual shards that each rank folds its own into, by (rank, slot)."""
        leaves: dict[tuple[int, int], Value] = {}
        nodes, shards = self.schedule.nodes, self.collective.shards
        missing = [
            set(canonical_nodes(shards[rank], shards[rank + 1], shards[-1])) for rank in range(self.schedule.ranks)
        ]
        for rank, slot, index in self.schedule.inputs.tolist():
            if not 0 <= index < len(nodes) or nodes[index] not in missing[rank]:
                what = nodes[index] if 0 <= index < len(nodes) else index
                raise PlanError(
                    f"schedule: input of rank {rank} is node {what}; expected each of the canonical nodes of its "
                    f"shards {shards[rank]} to {shards[rank + 1]} once"
                )
            missing[rank].remove(nodes[index])
            leaves[rank, slot] = Value(self._new_tree(), *nodes[index])
        return leaves

    def _new_tree(self) -> int:
        self.trees += 1
        return self.trees

    def _read(self, rank: int, slot: int, chunk: int, why: Transfer | Combine) -> Value:
        value = self.values.get((rank, slot, chunk))
        if value is None:
            raise PlanError(
                f"schedule: round {why.round}: rank {rank} reads slot {slot} chunk {chunk}, which nothing wrote before"
            )
        return value

    def _write(self, rank: int, slot: int, chunk: int, value: Value, why: Transfer | Combine | None) -> None:
        if (rank, slot, chunk) in self.values:
            where = "inputs" if why is None else f"round {why.round}"
            raise PlanError(f"schedule: {where}: rank {rank} slot {slot} chunk {chunk} is written twice")
        self.values[rank, slot, chunk] = value

    def _combine(self, fold: Combine) -> None:
        if len(fold.operands) < 2:
            raise PlanError(f"schedule: round {fold.round}: a combine of rank {fold.rank} has fewer than two operands")
        result = self._read(fold.rank, fold.operands[0], fold.chunk, fold)
        for slot in fold.operands[1:]:
            right = self._read(fold.rank, slot, fold.chunk, fold)
            pair = (result.tree, right.tree)
            if pair not in self.merged:
                self.merged[pair] = self._merge(result, right, fold)
            result = self.merged[pair]
        self._write(fold.rank, fold.out_slot, fold.chunk, result, fold)

    def _merge(self, left: Value, right: Value, fold: Combine) -> Value:
        tree = self._new_tree()
        if left.bits is None and right.bits is None:
            if left.high == right.low:
                canonical = left.canonical and right.canonical
                canonical &= left.high - left.low == canonical_split(right.high - left.low)
                return Value(tree, left.low, right.high, left.in_order and right.in_order, canonical)
            if right.high == left.low:
                return Value(tree, right.low, left.high, in_order=False, canonical=False)
        both, union = left.members() & right.members(), left.members() | right.members()
        if both:
            raise PlanError(
                f"schedule: round {fold.round}: rank {fold.rank} chunk {fold.chunk} counts the contribution of "
                f"{self._who(both)} twice"
            )
        low, high = min(left.low, right.low), max(left.high, right.high)
        whole = union == (1 << high) - (1 << low)
        return Value(tree, low, high, in_order=False, canonical=False, bits=None if whole else union)

    def _check_complete(self, rank: int, chunk: int, value: Value, expected: range) -> None:
        if value.bits is None and (value.low, value.high) == (expected.start, expected.stop):
            return
        wanted, members = (1 << expected.stop) - (1 << expected.start), value.members()
        if wanted & ~members:
            who = self._who(wanted & ~members)
            raise PlanError(f"schedule: output of rank {rank} chunk {chunk} misses the contribution of {who}")
        if members & ~wanted:
            who = self._who(members & ~wanted)
            raise PlanError(f"schedule: output of rank {rank} chunk {chunk} must not contain {who}")

    def _who(self, members: int) -> str:
        """The first of the contributions, in words."""
        first = (members & -members).bit_length() - 1
        return f"virtual shard {first}" if self.collective.shards else f"rank {first}"


def _busiest_port(schedule: Schedule, endpoints: Sequence[str]) -> int:
    if not len(schedule.transfers):
        return 0
    numbers: dict[str, int] = {}
    ends = np.asarray([numbers.setdefault(end, len(numbers)) for end in endpoints or map(str, range(schedule.ranks))])
    messages = np.unique(schedule.transfers[:, [0, 1, 3, 6]], axis=0)
    ports = [messages[:, 0] * len(numbers) + ends[messages[:, side]] for side in (1, 2)]
    return max(int(np.bincount(port).max()) for port in ports)


def _check_routes(schedule: Schedule, paths: PathFinder, endpoints: Sequence[str]) -> None:
    for src, dst, path in np.unique(schedule.transfers[:, [1, 3, 6]], axis=0).tolist():
        if path == NO_PATH:
            paths.cheapest(endpoints[src], endpoints[dst])
        elif not 0 <= path < len(schedule.paths):
            raise PlanError(f"schedule: a transfer names path {path}, but there are {len(schedule.paths)} paths")
        else:
            paths.explicit(schedule.paths[path], endpoints[src], endpoints[dst])


def _ranks(ranks: Sequence[int]) -> str:
    return f"ranks {ranks[0]}..{ranks[-1]}" if len(ranks) > 1 else f"rank {ranks[0]}"
