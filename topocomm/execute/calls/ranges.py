"""Rows, virtual shards and colors of all ranks: exchanged before a collective whose layout depends on them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from operator import index
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topocomm.errors import MismatchError, OperatorError, TopocommError
from topocomm.execute.calls.call_cache import CallCache
from topocomm.execute.calls.structure import parts_of
from topocomm.execute.session import Session

NO_ROWS = -1
"""Sent in place of a number of rows where a value is no array with rows."""
NO_SHARDS = (-1, -1)
"""Sent in place of virtual shards where none are given."""
NO_PAIR = (-2, -2)
"""Sent in place of virtual shards where the argument is no pair of whole numbers."""
NO_COLOR = (2, 0, 0)
"""Told where a color or key is no whole number; else it is whether there is a color, the color and the key."""
WORD = np.iinfo(np.int64)


def rows_of(x: Any) -> int:
    """How many rows a value gives to an all-gather; NO_ROWS of one that is no array with rows.

    `prepare` finds that out too, and tells all ranks.
    """
    if type(x) is np.ndarray and x.ndim:
        return len(x)
    with suppress(OperatorError, TypeError, StopIteration):
        return len(next(iter(parts_of(x).values())))
    return NO_ROWS


def shards_record(shards: Any) -> tuple[int, int]:
    """What this rank tells of its virtual shards."""
    if shards is None:
        return NO_SHARDS
    with suppress(TypeError, ValueError):
        start, stop = map(index, shards)
        if min(start, stop) >= 0 and max(start, stop) <= WORD.max:
            return start, stop
    return NO_PAIR


def split_record(color: Any, key: Any) -> NDArray[np.int64]:
    """What this rank tells of its group."""
    record: tuple[int, ...] = NO_COLOR
    with suppress(TypeError):
        numbers = (0, 0, index(key)) if color is None else (1, index(color), index(key))
        record = numbers if all(WORD.min <= number <= WORD.max for number in numbers) else NO_COLOR
    return np.array(record, np.int64)


def split_members(rank: int, records: Sequence[Sequence[int]], color: int | None) -> list[int]:
    """Return the ranks that give this color, in the order of their keys.

    Raises:
        TopocommError: A color or key of some rank is no whole number.
    """
    wrong = [str(peer) for peer, record in enumerate(records) if tuple(record) == NO_COLOR]
    if wrong:
        raise TopocommError(
            f"rank {rank}: split: expected whole numbers as color and key, or color None to join no group; "
            f"not so on rank {', '.join(wrong)}"
        )
    members = [peer for peer, record in enumerate(records) if list(record[:2]) == [1, color]]
    return sorted(members, key=lambda peer: (records[peer][2], peer))


def shard_edges(ranges: Sequence[tuple[int, int]]) -> tuple[int, ...] | None:
    """Return the first virtual shard of every rank and the end of the last; None where no rank says.

    Raises:
        MismatchError: Some ranks say and some do not, or their ranges do not follow each other from 0.
    """
    odd = [f"rank {rank}" for rank, pair in enumerate(ranges) if pair == NO_PAIR]
    if odd:
        raise MismatchError(f"shards of {', '.join(odd)}: expected (first, end), whole numbers of 0 or more")
    silent = [f"rank {rank}" for rank, pair in enumerate(ranges) if pair == NO_SHARDS]
    if len(silent) == len(ranges):
        return None
    if silent:
        by = ", ".join(f"rank {rank}" for rank, pair in enumerate(ranges) if pair != NO_SHARDS)
        raise MismatchError(f"virtual shards are given by {by}, and not by {', '.join(silent)}; all do or none")
    edges = [0]
    for rank, (start, stop) in enumerate(ranges):
        if start != edges[-1] or stop < start:
            raise MismatchError(
                f"virtual shards of the ranks are {[list(pair) for pair in ranges]}: those of rank {rank} must begin "
                f"at {edges[-1]}; the ranks' ranges follow each other in rank order, from 0"
            )
        edges.append(stop)
    return tuple(edges)


def gather_rows(calls: CallCache, session: Session, x: Any) -> tuple[int, ...]:
    """How many rows every rank gives to an all-gather; -1 from one whose value is no array with rows. Collective."""
    which = ("allgather", None, 0, (1,) * session.size)
    return tuple(calls.run(which, np.array([rows_of(x)]), None).tolist())


def pairs_of(x: Any, rows: Any, ranks: int) -> tuple[int, ...]:
    """How many rows this rank sends to each; NO_ROWS to all where `rows` are none of its value's."""
    with suppress(TypeError):
        counts = tuple(map(index, rows))
        if len(counts) == ranks and min(counts) >= 0 and sum(counts) == rows_of(x):
            return counts
    return (NO_ROWS,) * ranks


def gather_pairs(calls: CallCache, session: Session, record: tuple[int, ...]) -> tuple[int, ...]:
    """How many rows every rank sends to each, of what each tells by `pairs_of`. Collective."""
    which = ("allgather", None, 0, (session.size,) * session.size)
    return tuple(calls.run(which, np.array(record, np.int64), None).tolist())


def gather_shards(
    calls: CallCache, session: Session, shards: tuple[int, int] | None, collective: str, order: str
) -> tuple[int, ...] | None:
    """The first virtual shard of every rank and the end of the last; None where no rank says. Collective.

    Ranks that make `collective` in another order are told that, and not of this exchange.
    """
    which = ("allgather", None, 0, (2,) * session.size)
    session.on_behalf_of = {"collective": collective, "order": order if order != "any" else "any, with shards"}
    try:
        ranges = calls.run(which, np.array(shards_record(shards), np.int64), None).reshape(-1, 2)
    finally:
        session.on_behalf_of = {}
    try:
        return shard_edges([(start, stop) for start, stop in ranges.tolist()])
    except MismatchError as error:
        mismatch = MismatchError(f"rank {session.rank}: {error}")
        session.fail(mismatch, tell=False)  # all ranks see the same
        raise mismatch from None
