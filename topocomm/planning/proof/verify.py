"""Proof that a Schedule computes its collective, by exact symbolic replay on columns.

`dataflow.py` finds for every read the value that was written there, once and before; `expressions.py` gives every value
its expression over the contributions as a number, so `uniform` is decided by comparing integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NoReturn

import numpy as np

from topocomm.errors import PlanError
from topocomm.planning.collectives import PARTS_GOT, Collective, Column
from topocomm.planning.proof.dataflow import NOTHING, dataflow
from topocomm.planning.proof.expressions import CANONICAL, IN_ORDER, LEAF, CountedTwiceError, Trees
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.schedule.canonical_tree import canonical_nodes
from topocomm.planning.schedule.place_numbers import PlaceNumbers
from topocomm.planning.schedule.schedule import NO_PATH, Repeat, Schedule, number_keys, row_keys
from topocomm.planning.schedule.traffic import busiest_port


@dataclass(frozen=True)
class Proof:
    """Proved properties of a Schedule; False is a property that it does not have (an invalid one raises)."""

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
    places: PlaceNumbers | None = None,
) -> Proof:
    """Return the proof that `schedule` computes `collective`.

    Proved are: every slot is written once and before it is read, and no rank sends to itself (so rounds in order, with
    all messages of a round posted before any is awaited, cannot deadlock); inputs exist for every chunk, of
    `PARTS_GIVEN` for the chunks of the rank's part only; every output holds the contributions of the collective, each
    exactly once; all ranks that receive a result evaluate one expression tree (in canonical order, the canonical one);
    and with `paths` and `endpoints`, each message has a route on the machine.

    Slices of a pipelined schedule share no value, since every place belongs to one chunk: a proof of the rounds holds
    for each slice. Ports are counted over all slices under way. Every slice of a chunk that has rows has rows, so
    `repeat.count` is at most the rows of the shortest such chunk; slices 0 rounds apart run in the same messages.

    Args:
        schedule: The schedule.
        collective: The collective that it must compute.
        paths: Routes on the machine.
        endpoints: Endpoint id of each rank.
        ports: Messages that an endpoint may send, and receive, in one round.
        serialised: Whether the cost model serialises messages of a busy port, so that more than `ports` in a round is
            no violation.
        keep_order: Whether operands must stand in rank order, since the operator does not commute.
        places: `number_places` of the schedule, where they are known.

    Raises:
        PlanError: The schedule is invalid; the message names round, rank, slot and chunk. Faults of slots are reported
            before faults of values.
    """
    _check_columns(schedule, collective)
    owners, having = collective.owners(schedule.chunks), collective.input_owners(schedule.chunks)
    if schedule.owners != having:
        raise PlanError(f"schedule: its inputs are those of owners {schedule.owners}, the collective's are {having}")
    trees = Trees(*_leaves(schedule, collective))
    owner_of = np.asarray(owners or np.zeros(len(schedule.chunks)), dtype=np.int64)
    order_kept, uniform, canonical = _check_values(schedule, collective, trees, owner_of, places)
    if not uniform:
        raise PlanError("schedule: ranks evaluate different expression trees, so their bits could differ")
    if keep_order and not order_kept:
        raise PlanError("schedule: operands do not stand in rank order, which an operator that does not commute needs")
    if collective.shards and not canonical:
        raise PlanError("schedule: a result is not the canonical tree over the virtual shards")
    if not serialised and (busiest := busiest_port(schedule, endpoints)) > ports:
        raise PlanError(f"schedule: an endpoint has {busiest} messages in one round, {ports} are allowed")
    if paths is not None:
        src, dst, path = (schedule.transfers[:, column] for column in (1, 3, 6))
        named = np.flatnonzero(path != NO_PATH)
        for index in named[np.unique(row_keys(src[named], dst[named], path[named]), return_index=True)[1]].tolist():
            paths.explicit(schedule.paths[path[index]], endpoints[src[index]], endpoints[dst[index]])
        plain = np.flatnonzero(path == NO_PATH)
        plain = plain[np.sort(number_keys(row_keys(src[plain], dst[plain]))[0])]  # each pair of ranks once
        for index in plain[np.isinf(paths.message_latencies_us(endpoints, src[plain], dst[plain]))].tolist():
            paths.cheapest(endpoints[src[index]], endpoints[dst[index]])  # raises with the reason
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


def _check_columns(schedule: Schedule, collective: Collective) -> None:
    """Check the ranges of all columns but slots, whose numbers are free, and the pipeline."""
    if schedule.ranks != collective.ranks:
        raise PlanError(f"schedule: {schedule.ranks} ranks, the collective has {collective.ranks}")
    chunks, transfers, combines = len(schedule.chunks), schedule.transfers, schedule.combines
    for name, column, limit in (
        ("transfer round", transfers[:, 0], schedule.rounds),
        ("transfer source", transfers[:, 1], schedule.ranks),
        ("transfer destination", transfers[:, 3], schedule.ranks),
        ("transfer chunk", transfers[:, 5], chunks),
        ("combine round", combines[:, 0], schedule.rounds),
        ("combine rank", combines[:, 1], schedule.ranks),
        ("combine chunk", combines[:, 3], chunks),
        ("input rank", schedule.inputs[:, 0], schedule.ranks),
    ):
        if column.size and (int(column.min()) < 0 or int(column.max()) >= limit):
            raise PlanError(f"schedule: {name} is outside 0..{limit - 1}")
    for name, table in ("transfers", transfers), ("combines", combines):
        if (np.diff(table[:, 0]) < 0).any():
            raise PlanError(f"schedule: its {name} are not sorted by round")
    starts = schedule.operand_starts
    if (
        len(starts) != len(combines) + 1
        or starts[0]
        or starts[-1] != len(schedule.operands)
        or (np.diff(starts) < 0).any()
    ):
        raise PlanError("schedule: the starts of its operands do not cut them in one part per combine")
    for row in np.flatnonzero(transfers[:, 1] == transfers[:, 3])[:1]:
        raise PlanError(f"schedule: round {transfers[row, 0]}: rank {transfers[row, 1]} sends to itself")
    path = transfers[:, 6]
    for wrong in path[(path >= len(schedule.paths)) | (path < NO_PATH)][:1]:
        raise PlanError(f"schedule: a transfer names path {wrong}, but there are {len(schedule.paths)} paths")
    _check_chunks(schedule, collective)
    if schedule.repeat is not None:
        _check_repeat(schedule, schedule.repeat)


def _check_chunks(schedule: Schedule, collective: Collective) -> None:
    row = 0
    for chunk, (first, rows) in enumerate(schedule.chunks):
        if first != row or rows < 0:
            raise PlanError(f"schedule: chunk {chunk} starts at row {first}, expected {row}: chunks must abut")
        row += rows
    if collective.parts and row != sum(collective.parts):
        raise PlanError(f"schedule: the chunks have {row} rows, the parts {sum(collective.parts)}")


def _check_repeat(schedule: Schedule, repeat: Repeat) -> None:
    count, stagger = repeat.count, repeat.stagger_rounds
    if count < 1 or stagger < 0:
        raise PlanError(
            f"schedule: repeat: count {count}, stagger_rounds {stagger}; expected a count of at least 1 and a stagger "
            "of at least 0"
        )
    shortest, chunk = min(
        ((rows, chunk) for chunk, (_, rows) in enumerate(schedule.chunks) if rows), default=(count, 0)
    )
    if count > shortest:
        raise PlanError(
            f"schedule: repeat: {count} slices of chunk {chunk}, which has {shortest} rows: every slice has one or more"
        )
    entries = max(len(schedule.chunks), len(schedule.transfers), len(schedule.operands), len(schedule.outputs))
    if max(count * entries, schedule.rounds + (count - 1) * stagger) > np.iinfo(np.int32).max:
        raise PlanError(f"schedule: repeat: {count} slices of {entries} entries are more than columns can number")


def _leaves(schedule: Schedule, collective: Collective) -> tuple[list[int], list[int]]:
    """(first, end) of the contributions of every row of `inputs`."""
    if collective.shards:
        return _canonical_leaves(schedule, collective)
    rank, _, who = schedule.inputs.T
    among = collective.contributors
    first = np.zeros(len(who), dtype=bool)
    first[np.unique(who, return_index=True)[1]] = True
    for wrong in np.flatnonzero((rank != who) | (who < among.start) | (who >= among.stop) | ~first)[:1]:
        raise PlanError(
            f"schedule: input of rank {rank[wrong]} claims the contribution of rank {who[wrong]}; expected each of "
            f"{f'ranks {among[0]}..{among[-1]}' if len(among) > 1 else f'rank {among[0]}'} once, at home"
        )
    if schedule.nodes:
        raise PlanError("schedule: it has nodes of virtual shards, but the collective has no shards")
    return who.tolist(), (who + 1).tolist()


def _canonical_leaves(schedule: Schedule, collective: Collective) -> tuple[list[int], list[int]]:
    """As `_leaves`, in canonical order: the canonical nodes of each rank's virtual shards."""
    nodes, shards = schedule.nodes, collective.shards
    missing = [set(canonical_nodes(low, high, shards[-1])) for low, high in pairwise(shards)]
    for rank, _, index in schedule.inputs.tolist():
        if not 0 <= index < len(nodes) or nodes[index] not in missing[rank]:
            what = nodes[index] if 0 <= index < len(nodes) else index
            raise PlanError(
                f"schedule: input of rank {rank} is node {what}; expected each of the canonical nodes of its "
                f"shards {shards[rank]} to {shards[rank + 1]} once"
            )
        missing[rank].remove(nodes[index])
    held = [nodes[index] for index in schedule.inputs[:, 2].tolist()]
    return [low for low, _ in held], [high for _, high in held]


def _check_values(
    schedule: Schedule, collective: Collective, trees: Trees, owners: Column, places: PlaceNumbers | None
) -> tuple[bool, bool, bool]:
    """(order kept, uniform, canonical); raises where a value or an output is wrong."""
    flow = dataflow(schedule, places)
    try:
        tree_of = trees.fold(flow.inputs[:, 3], flow.operands, schedule.operand_starts)
    except CountedTwiceError as twice:
        round_, rank, _, chunk = schedule.combines[twice.fold].tolist()
        raise PlanError(
            f"schedule: round {round_}: rank {rank} chunk {chunk} counts the contribution of "
            f"{_who(collective, twice.both)} twice"
        ) from None
    held = np.append(tree_of, NOTHING)[flow.outputs]
    groups = _check_outputs(schedule, collective, trees, owners, held)
    first, group = number_keys(groups)
    flags = np.bitwise_and.reduce(trees.flags[held], initial=LEAF)
    order_kept, canonical = bool(flags & IN_ORDER), bool(collective.shards) and bool(flags & CANONICAL)
    return order_kept, bool((held[first][group] == held).all()), canonical


def _check_outputs(schedule: Schedule, collective: Collective, trees: Trees, owners: Column, held: Column) -> Column:
    """Check the outputs, whose trees are `held`; returns their groups: outputs of a group must be one expression."""
    rank, _, chunk = schedule.outputs.T.astype(np.int64)
    valid = (rank >= 0) & (rank < schedule.ranks) & (chunk >= 0) & (chunk < len(schedule.chunks))
    owner = owners[np.where(valid, chunk, 0)] if len(owners) else chunk
    valid &= collective.receive_columns(rank, owner)
    places = np.where(valid, rank * len(schedule.chunks) + chunk, -1)
    first = np.zeros(len(places), dtype=bool)
    first[number_keys(places + 1)[0]] = True
    low, high = collective.expected_columns(rank, owner)
    right = valid & first & (held != NOTHING)
    right[right] = trees.are(held[right], low[right], high[right])
    for row in np.flatnonzero(~right)[:1].tolist():
        if not (valid[row] and first[row]):
            raise PlanError(f"schedule: rank {rank[row]} chunk {chunk[row]} is output twice or belongs to no result")
        _refuse_output(
            schedule.outputs[row].tolist(),
            collective,
            trees,
            int(held[row]),
            (1 << int(high[row])) - (1 << int(low[row])),
        )
    chunks = len(schedule.chunks)
    each = 1 if collective.name in PARTS_GOT else len(collective.receivers)
    if len(places) != each * chunks:
        wanted = np.arange(schedule.ranks * chunks)
        wanted = wanted[collective.receive_columns(wanted // chunks, owners[wanted % chunks])]
        for place in np.setdiff1d(wanted, places)[:1].tolist():
            raise PlanError(f"schedule: rank {place // chunks} has no output for chunk {place % chunks}")
    return row_keys(chunk, high)


def _refuse_output(output: list[int], collective: Collective, trees: Trees, tree: int, wanted: int) -> NoReturn:
    """Raise the fault of an output that holds this tree, not the contributions wanted, one bit each."""
    rank, slot, chunk = output
    if tree == NOTHING:
        raise PlanError(f"schedule: output of rank {rank} chunk {chunk} is slot {slot}, which nothing wrote")
    members = trees.members(tree)
    if wanted & ~members:
        who = _who(collective, wanted & ~members)
        raise PlanError(f"schedule: output of rank {rank} chunk {chunk} misses the contribution of {who}")
    raise PlanError(
        f"schedule: output of rank {rank} chunk {chunk} must not contain {_who(collective, members & ~wanted)}"
    )


def _who(collective: Collective, members: int) -> str:
    """The first of the contributions, in words."""
    first = (members & -members).bit_length() - 1
    return f"virtual shard {first}" if collective.shards else f"rank {first}"
