"""The `schedule` of a plan JSON: columns to plain lists and back, every entry checked.

Entries are converted in bulk: a plan of 16,384 ranks has 229,376 transfers and as many combines.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from itertools import accumulate, chain, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topocomm.planning.collectives import Collective
from topocomm.planning.formats.checked import (
    LARGEST,
    Json,
    Whole,
    a_list,
    a_text,
    an_object,
    each,
    entry,
    refuse,
    table,
)
from topocomm.planning.schedule.schedule import NO_PATH, IntTable, Repeat, Schedule

MOST_ROWS = (1 << 53) - 1
"""Largest integer on which JSON readers agree."""
CHUNK = (Whole("a first row", MOST_ROWS), Whole("a number of rows", MOST_ROWS))
NODE = (Whole("a virtual shard", LARGEST), Whole("the end of virtual shards", LARGEST))
SLOT = Whole("a slot", LARGEST)
WHERE = "schedule"
"""Path of the schedule in the document."""
Rounds = Sequence[dict[str, list[Json]]]


def schedule_document(schedule: Schedule) -> dict[str, Any]:
    """Return the schedule as plain lists."""
    moves: list[list[int]]
    if (schedule.transfers[:, 6] == NO_PATH).all():
        moves = schedule.transfers[:, 1:6].tolist()
    else:
        moves = [row if row[5] != NO_PATH else row[:5] for row in schedule.transfers[:, 1:].tolist()]
    operands, starts = schedule.operands.tolist(), schedule.operand_starts.tolist()
    folds = [
        [rank, slot, operands[start:end], chunk]
        for (_, rank, slot, chunk), start, end in zip(schedule.combines.tolist(), starts, starts[1:], strict=False)
    ]
    moved = [moves[start:end] for start, end in pairwise(_edges(schedule.transfers, schedule).tolist())]
    folded = [folds[start:end] for start, end in pairwise(_edges(schedule.combines, schedule).tolist())]
    return {
        **_short_entries(schedule),
        "inputs": schedule.inputs.tolist(),
        "outputs": schedule.outputs.tolist(),
        "rounds": [{"transfers": moves, "combines": folds} for moves, folds in zip(moved, folded, strict=True)],
    }


def compact_json(value: Any) -> str:
    """Return canonical JSON: keys sorted, no spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), check_circular=False)


def schedule_text(schedule: Schedule) -> str:
    """Return the canonical JSON of `schedule_document`."""
    try:
        from topocomm.native._native import rounds_text, table_text
    except ImportError:
        return compact_json(schedule_document(schedule))
    moves, folds, read, starts, given, results = (
        np.ascontiguousarray(table, dtype=np.int32)
        for table in (
            schedule.transfers,
            schedule.combines,
            schedule.operands,
            schedule.operand_starts,
            schedule.inputs,
            schedule.outputs,
        )
    )
    texts = {key: compact_json(value) for key, value in _short_entries(schedule).items()}
    texts |= {"inputs": table_text(given), "outputs": table_text(results)}
    texts["rounds"] = rounds_text(_edges(moves, schedule), moves, _edges(folds, schedule), folds, read, starts)
    return "{" + ",".join(f'"{key}":{texts[key]}' for key in sorted(texts)) + "}"


def _short_entries(schedule: Schedule) -> dict[str, Any]:
    """All but the tables."""
    return {
        "chunks": list(map(list, schedule.chunks)),
        **({"nodes": list(map(list, schedule.nodes))} if schedule.nodes else {}),
        "paths": list(map(list, schedule.paths)),
        "repeat": None if schedule.repeat is None else asdict(schedule.repeat),
    }


def _edges(columns: IntTable, schedule: Schedule) -> NDArray[np.int64]:
    """Where the entries of each round begin, and their number."""
    return np.searchsorted(columns[:, 0], np.arange(schedule.rounds + 1))


def read_schedule(value: Json, collective: Collective) -> Schedule:
    """Return the schedule of a plan document, its entries in range; nothing is proved here.

    Raises:
        PlanError: An entry is wrong, the message has its path; or a chunk is within no rank's part.
    """
    document = an_object(value, WHERE)

    def rows_of(key: str, columns: tuple[Whole, ...], form: str) -> NDArray[np.int64]:
        rows = entry(document, key, a_list, WHERE)
        return table(rows, columns, form, lambda row: f"{WHERE}.{key}[{row}]")

    chunks = tuple(map(tuple, rows_of("chunks", CHUNK, "[first_row, rows]").tolist()))
    shards = rows_of("nodes", NODE, "[first shard, end]").tolist() if "nodes" in document else []
    paths = entry(document, "paths", a_list, WHERE)
    rank, chunk = Whole("a rank", collective.ranks - 1), Whole("a chunk", len(chunks) - 1)
    contributed = Whole("a node", len(shards) - 1) if shards else Whole("a contributing rank", collective.ranks - 1)
    rounds = entry(document, "rounds", each(_round), WHERE)
    operands, starts, combines = _combines(rounds, rank, chunk)
    return Schedule(
        ranks=collective.ranks,
        rounds=len(rounds),
        chunks=chunks,
        inputs=rows_of("inputs", (rank, SLOT, contributed), "[rank, slot, contributing rank]").astype(np.int32),
        outputs=rows_of("outputs", (rank, SLOT, chunk), "[rank, slot, chunk]").astype(np.int32),
        transfers=_transfers(rounds, rank, chunk, Whole("a path", len(paths) - 1)),
        combines=combines,
        operands=operands,
        operand_starts=starts,
        paths=entry(document, "paths", each(each(a_text)), WHERE),
        owners=collective.input_owners(chunks),
        nodes=tuple(map(tuple, shards)),
        repeat=entry(document, "repeat", _repeat, WHERE),
    )


def _round(value: Json, where: str) -> dict[str, list[Json]]:
    document = an_object(value, where)
    return {key: entry(document, key, a_list, where) for key in ("transfers", "combines")}


def _repeat(value: Json, where: str) -> Repeat | None:
    if value is None:
        return None
    document = an_object(value, where)
    count = entry(document, "count", Whole("a number of slices", LARGEST, 1), where)
    return Repeat(count, entry(document, "stagger_rounds", Whole("a number of rounds", LARGEST), where))


def _places(rounds: Rounds, key: str) -> tuple[list[Any], NDArray[np.int32], Callable[[int], str]]:
    """All entries, the round of each, and a function from an index to the entry's path."""
    counts = [len(round_[key]) for round_ in rounds]
    ends = list(accumulate(counts))

    def place(row: int) -> str:
        index = next(index for index, end in enumerate(ends) if row < end)
        return f"{WHERE}.rounds[{index}].{key}[{row - ends[index] + counts[index]}]"

    entries = list(chain.from_iterable(round_[key] for round_ in rounds))
    return entries, np.repeat(np.arange(len(rounds), dtype=np.int32), counts), place


def _transfers(rounds: Rounds, rank: Whole, chunk: Whole, path: Whole) -> IntTable:
    entries, at, place = _places(rounds, "transfers")
    columns = (rank, SLOT, rank, SLOT, chunk)
    form = "[src_rank, src_slot, dst_rank, dst_slot, chunk] or one with a path at its end"
    transfers = np.full((len(entries), 7), NO_PATH, dtype=np.int32)
    transfers[:, 0] = at
    named = np.zeros(len(entries), dtype=bool)
    if not _are_lists(entries, len(columns)):
        named[:] = [_are_lists([own], len(columns) + 1) for own in entries]
    if path.high < 0 and named.any():
        row = int(named.argmax())
        refuse(f"{place(row)}[5]", "no path, since there are no paths", entries[row][5])

    def read(which: NDArray[np.bool_], kinds: Sequence[Whole]) -> None:
        rows = np.flatnonzero(which).tolist()
        chosen = entries if len(rows) == len(entries) else [entries[row] for row in rows]
        transfers[which, 1 : len(kinds) + 1] = table(chosen, kinds, form, lambda index: place(rows[index]))

    read(~named, columns)
    read(named, (*columns, path))
    return transfers


def _combines(rounds: Rounds, rank: Whole, chunk: Whole) -> tuple[IntTable, IntTable, IntTable]:
    """Operands, their starts, and the combines."""
    entries, at, place = _places(rounds, "combines")
    if not (_are_lists(entries, 4) and _are_lists(own[2] for own in entries)):
        first = next(row for row, own in enumerate(entries) if not (_are_lists([own], 4) and _are_lists([own[2]])))
        refuse(place(first), "[rank, out_slot, [operand slots], chunk]", entries[first])
    ranks, slots, operands, chunks = zip(*entries, strict=True) if entries else ((), (), (), ())
    combines = [
        at,
        _column(ranks, rank, lambda row: f"{place(row)}[0]"),
        _column(slots, SLOT, lambda row: f"{place(row)}[1]"),
        _column(chunks, chunk, lambda row: f"{place(row)}[3]"),
    ]
    starts = np.concatenate([[0], np.cumsum(list(map(len, operands)), dtype=np.int64)])

    def operand(index: int) -> str:
        row = int(np.searchsorted(starts, index, side="right")) - 1
        return f"{place(row)}[2][{index - int(starts[row])}]"

    flat = _column(list(chain.from_iterable(operands)), SLOT, operand)
    return flat, starts.astype(np.int32), np.column_stack(combines)


def _are_lists(values: Iterable[Any], size: int | None = None) -> bool:
    """Whether all are lists, of `size` entries where it is given."""
    if size is None:
        return set(map(type, values)) <= {list}
    values = list(values)
    return _are_lists(values) and set(map(len, values)) <= {size}


def _column(values: Sequence[Any], kind: Whole, place: Callable[[int], str]) -> IntTable:
    if set(map(type, values)) <= {int} and (not values or (kind.low <= min(values) and max(values) <= kind.high)):
        return np.array(values, dtype=np.int32)
    for index, value in enumerate(values):
        kind(value, place(index))
    raise AssertionError("a column without a fault was refused")
