"""The `schedule` of a plan JSON: columns to plain lists and back, every entry checked.

Entries are converted in bulk: a plan of 16,384 ranks has 229,376 transfers and as many combines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import accumulate, chain, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topocomm.planning.collectives import Collective
from topocomm.planning.formats.checked import (
    LARGEST,
    Whole,
    a_list,
    a_whole,
    an_object,
    below,
    entry,
    refuse,
    table,
    texts,
)
from topocomm.planning.schedule.schedule import NO_PATH, IntTable, Repeat, Rows, Schedule

RoundLists = list[dict[str, list[Any]]]
MOST_ROWS = (1 << 53) - 1
"""Largest integer on which JSON readers agree."""
CHUNK = (Whole("a first row", MOST_ROWS), Whole("a number of rows", MOST_ROWS))
NODE = (Whole("a virtual shard", LARGEST), Whole("the end of virtual shards", LARGEST))
SLOT = Whole("a slot", LARGEST)


def schedule_document(schedule: Schedule) -> dict[str, Any]:
    """Return the schedule as plain lists."""
    moved = _by_round(_transfer_entries(schedule), schedule.transfers, schedule.rounds)
    folded = _by_round(_combine_entries(schedule), schedule.combines, schedule.rounds)
    repeats = schedule.repeat
    return {
        "chunks": [list(chunk) for chunk in schedule.chunks],
        **({"nodes": [list(node) for node in schedule.nodes]} if schedule.nodes else {}),
        "inputs": schedule.inputs.tolist(),
        "outputs": schedule.outputs.tolist(),
        "rounds": [{"transfers": moves, "combines": folds} for moves, folds in zip(moved, folded, strict=True)],
        "paths": [list(path) for path in schedule.paths],
        "repeat": None if repeats is None else {"count": repeats.count, "stagger_rounds": repeats.stagger_rounds},
    }


def read_schedule(value: object, collective: Collective, where: str = "schedule") -> Schedule:
    """Return the schedule of a plan document, its entries in range; nothing is proved here.

    Raises:
        PlanError: An entry is wrong, the message has its path; or a chunk of an allgather is within no rank's part.
    """
    document = an_object(value, where)
    chunks = _pairs(document, "chunks", CHUNK, "[first_row, rows]", where)
    nodes = _pairs(document, "nodes", NODE, "[first shard, end]", where) if "nodes" in document else ()
    paths = _lists(document, "paths", where)
    rank, chunk = Whole("a rank", collective.ranks - 1), Whole("a chunk", len(chunks) - 1)
    contributed = Whole("a node", len(nodes) - 1) if nodes else Whole("a contributing rank", collective.ranks - 1)
    rounds = _rounds(document, where)
    operands, starts, combines = _combines(rounds, rank, chunk, where)
    return Schedule(
        ranks=collective.ranks,
        rounds=len(rounds),
        chunks=chunks,
        inputs=_triples(document, "inputs", (rank, SLOT, contributed), "[rank, slot, contributing rank]", where),
        outputs=_triples(document, "outputs", (rank, SLOT, chunk), "[rank, slot, chunk]", where),
        transfers=_transfers(rounds, rank, chunk, Whole("a path", len(paths) - 1), where),
        combines=combines,
        operands=operands,
        operand_starts=starts,
        paths=tuple(texts(path, f"{where}.paths[{index}]") for index, path in enumerate(paths)),
        owners=collective.owners(chunks) if collective.name == "allgather" else (),
        nodes=nodes,
        repeat=_repeat(entry(document, "repeat", where), f"{where}.repeat"),
    )


def _transfer_entries(schedule: Schedule) -> list[list[int]]:
    columns = schedule.transfers
    if not (columns[:, 6] != NO_PATH).any():
        plain: list[list[int]] = columns[:, 1:6].tolist()
        return plain
    return [row if row[5] != NO_PATH else row[:5] for row in columns[:, 1:].tolist()]


def _combine_entries(schedule: Schedule) -> list[list[Any]]:
    operands, starts = schedule.operands.tolist(), schedule.operand_starts.tolist()
    return [
        [rank, slot, operands[start:end], chunk]
        for (_, rank, slot, chunk), start, end in zip(schedule.combines.tolist(), starts, starts[1:], strict=False)
    ]


def _by_round(entries: list[Any], columns: IntTable, rounds: int) -> list[list[Any]]:
    edges = np.searchsorted(columns[:, 0], np.arange(rounds + 1)).tolist()
    return [entries[start:end] for start, end in pairwise(edges)]


def _lists(document: dict[str, Any], key: str, where: str) -> list[Any]:
    return a_list(entry(document, key, where), below(where, key))


def _pairs(
    document: dict[str, Any], key: str, columns: tuple[Whole, Whole], form: str, where: str
) -> tuple[tuple[int, int], ...]:
    pairs = table(_lists(document, key, where), columns, form, lambda row: f"{where}.{key}[{row}]")
    return tuple((low, high) for low, high in pairs.tolist())


def _triples(
    document: dict[str, Any], key: str, columns: tuple[Whole, Whole, Whole], form: str, where: str
) -> IntTable:
    rows = _lists(document, key, where)
    return table(rows, columns, form, lambda row: f"{where}.{key}[{row}]").astype(np.int32)


def _rounds(document: dict[str, Any], where: str) -> RoundLists:
    rounds = _lists(document, "rounds", where)
    for index, value in enumerate(rounds):
        path = f"{where}.rounds[{index}]"
        for key in ("transfers", "combines"):
            _lists(an_object(value, path), key, path)
    return rounds


def _places(rounds: RoundLists, key: str, where: str) -> tuple[list[Any], NDArray[np.int32], Callable[[int], str]]:
    """All entries, the round of each, and a function from an index to the entry's path."""
    counts = [len(round_[key]) for round_ in rounds]
    ends = list(accumulate(counts))

    def place(row: int) -> str:
        index = next(index for index, end in enumerate(ends) if row < end)
        return f"{where}.rounds[{index}].{key}[{row - ends[index] + counts[index]}]"

    return (
        list(chain.from_iterable(round_[key] for round_ in rounds)),
        np.repeat(np.arange(len(rounds), dtype=np.int32), counts),
        place,
    )


def _transfers(rounds: RoundLists, rank: Whole, chunk: Whole, path: Whole, where: str) -> IntTable:
    entries, at, place = _places(rounds, "transfers", where)
    columns = (rank, SLOT, rank, SLOT, chunk)
    form = "[src_rank, src_slot, dst_rank, dst_slot, chunk] or one with a path at its end"
    transfers = np.full((len(entries), 7), NO_PATH, dtype=np.int32)
    transfers[:, 0] = at
    named = np.zeros(len(entries), dtype=bool)
    if not _are_lists(entries, len(columns)):
        named[:] = [_are_lists([each], len(columns) + 1) for each in entries]
    if path.high < 0 and named.any():
        row = int(named.argmax())
        refuse(f"{place(row)}[5]", "no path, since there are no paths", entries[row][5])
    for which, kinds in (~named, columns), (named, (*columns, path)):
        rows = np.flatnonzero(which)
        chosen = entries if len(rows) == len(entries) else [entries[row] for row in rows.tolist()]
        transfers[rows, 1 : len(kinds) + 1] = table(chosen, kinds, form, partial(_place_of, place, rows))
    return transfers


def _place_of(place: Callable[[int], str], rows: Rows, index: int) -> str:
    """The path of one of these rows."""
    return place(int(rows[index]))


def _combines(rounds: RoundLists, rank: Whole, chunk: Whole, where: str) -> tuple[IntTable, IntTable, IntTable]:
    """Operands, their starts, and the combines."""
    entries, at, place = _places(rounds, "combines", where)
    if not (_are_lists(entries, 4) and _are_lists(each[2] for each in entries)):
        wrong = (row for row, each in enumerate(entries) if not (_are_lists([each], 4) and _are_lists([each[2]])))
        first = next(wrong)
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
    """A list of whole numbers as a column."""
    if set(map(type, values)) <= {int} and (not values or (kind.low <= min(values) and max(values) <= kind.high)):
        return np.array(values, dtype=np.int32)
    for index, value in enumerate(values):
        a_whole(value, kind, place(index))
    raise AssertionError("a column without a fault was refused")


def _repeat(value: object, where: str) -> Repeat | None:
    if value is None:
        return None
    document = an_object(value, where)
    count, stagger = (entry(document, key, where) for key in ("count", "stagger_rounds"))
    return Repeat(
        a_whole(count, Whole("a number of slices", LARGEST, 1), f"{where}.count"),
        a_whole(stagger, Whole("a number of rounds", LARGEST), f"{where}.stagger_rounds"),
    )
