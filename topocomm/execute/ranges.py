"""What ranks give to collectives in parts, as they are told of each other."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from topocomm.errors import MismatchError, OperatorError
from topocomm.execute.structure import parts_of

NO_ROWS = -1
"""Told instead of a number of rows where a value is no array with rows."""
NO_SHARDS = (-1, -1)
"""Told instead of virtual shards where none are given."""


def rows_of(x: Any) -> int:
    """How many rows a value gives to an all-gather; NO_ROWS of one that is no array with rows.

    `prepare` finds that out too, and tells all ranks.
    """
    with suppress(OperatorError, TypeError, StopIteration):
        return len(next(iter(parts_of(x).values())))
    return NO_ROWS


def shard_edges(told: Sequence[tuple[int, int]]) -> tuple[int, ...] | None:
    """The first virtual shard of every rank and the end of the last; None where no rank says.

    Args:
        told: First shard and end of every rank, or NO_SHARDS.

    Raises:
        MismatchError: Some ranks say and some do not, or their ranges do not follow each other from 0.
    """
    silent = [pair == NO_SHARDS for pair in told]
    if all(silent):
        return None
    if any(silent):
        given, none = (
            ", ".join(f"rank {rank}" for rank, quiet in enumerate(silent) if quiet == wanted)
            for wanted in (False, True)
        )
        raise MismatchError(f"virtual shards are given by {given}, and not by {none}; all do or none")
    edges = [0]
    for rank, (start, stop) in enumerate(told):
        if start != edges[-1] or stop < start:
            raise MismatchError(
                f"virtual shards of the ranks are {[list(pair) for pair in told]}: those of rank {rank} must begin at "
                f"{edges[-1]}; the ranks' ranges follow each other in rank order, from 0"
            )
        edges.append(stop)
    return tuple(edges)
