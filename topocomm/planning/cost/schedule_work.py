"""The work of a Schedule: its messages and folds, and what starting a round costs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from topocomm.errors import PlanError
from topocomm.planning.cost.messages import Messages, messages_of
from topocomm.planning.cost.simulated_work import COMPUTE, JOIN, SEND, Work, distinct
from topocomm.planning.routing.routes import Floats, Ints
from topocomm.planning.schedule.place_numbers import PlaceNumbers, number_places
from topocomm.planning.schedule.schedule import NO_PATH, Schedule, row_keys, stable_order
from topocomm.planning.schedule.transforms import unrolled

_LAUNCH, _MESSAGE, _FOLD = range(3)
"""Order of tasks within a round."""


def of_schedule(
    schedule: Schedule,
    endpoints: Sequence[str],
    payload_bytes: int,
    *,
    launch_us: float = 0.0,
    fold_gb_per_s: float | None = None,
    label: str = "",
) -> Work:
    """Return the messages and folds of a verified schedule as work.

    Without launches a message starts when its slots are ready, as in the cost model of plans. With `launch_us`, a rank
    starts all its messages of a round together, once those of its round before have arrived: groups of messages
    between GPUs are one kernel each, in the order of a stream.

    Args:
        schedule: The schedule; a pipeline is unrolled.
        endpoints: Endpoint id of every rank.
        payload_bytes: Bytes of all rows of the schedule; chunks have their share.
        launch_us: What a rank's round costs to start.
        fold_gb_per_s: Rate of the bytes that an endpoint reads and writes to fold; None: folds cost nothing.
        label: Name of the work, for texts.

    Raises:
        PlanError: The number of endpoints is not that of the ranks, or `payload_bytes` is below 0.
    """
    if len(endpoints) != schedule.ranks:
        raise PlanError(f"schedule of {schedule.ranks} ranks: expected as many endpoints, got {len(endpoints)}")
    if payload_bytes < 0:
        raise PlanError(f"schedule: expected a payload of at least 0 bytes, got {payload_bytes}")
    schedule = unrolled(schedule)
    sizes = _chunk_bytes(schedule, payload_bytes)
    messages = messages_of(schedule, sizes)
    fold_us = None if fold_gb_per_s is None else _fold_us(schedule, sizes, fold_gb_per_s)
    return of_messages(schedule, messages, endpoints, launch_us=launch_us, fold_us=fold_us, label=label)


def of_messages(
    schedule: Schedule,
    messages: Messages,
    endpoints: Sequence[str],
    places: PlaceNumbers | None = None,
    *,
    launch_us: float = 0.0,
    fold_us: Floats | None = None,
    label: str = "",
) -> Work:
    """Return the work of a schedule without `repeat`, whose messages, and perhaps places, are known.

    `fold_us` has the time of every combine; None: they cost nothing. The others as of `of_schedule`.
    """
    places = places or number_places(schedule)
    launches = _launches(messages, schedule.ranks) if launch_us else _NONE
    ranks, folds = schedule.ranks, schedule.combines.astype(np.int64)
    kinds = [len(launches), len(messages), len(folds)]
    round_ = np.concatenate([launches // ranks, messages.round, folds[:, 0]])
    order = stable_order(row_keys(round_, np.repeat(np.arange(3), kinds)))
    number = np.empty_like(order)
    number[order] = np.arange(len(order))
    numbers = np.split(number, np.cumsum(kinds)[:-1])
    edges = _edges_of_values(schedule, messages, places, numbers)
    if len(launches):
        edges += _edges_of_launches(messages, launches, ranks, numbers)
    after_starts, after = _columns(edges, len(order))
    none = np.zeros(len(launches) + len(folds))
    nothing, free = none.astype(np.int64), fold_us is None
    none_of = nothing + NO_PATH
    before_us = np.concatenate(
        [
            np.full(len(launches), launch_us),
            np.zeros(len(messages)),
            none[len(launches) :] if fold_us is None else fold_us,
        ]
    )
    kind = np.repeat(np.array([JOIN, SEND, JOIN if free else COMPUTE], dtype=np.int8), kinds)
    return Work(
        tuple(endpoints),
        np.concatenate([launches % ranks, messages.src, folds[:, 1]])[order].astype(np.int32),
        np.concatenate([launches % ranks, messages.dst, folds[:, 1]])[order].astype(np.int32),
        np.concatenate([nothing[: len(launches)], messages.payload_bytes, nothing[len(launches) :]])[order],
        before_us[order],
        np.where(kind == SEND, np.nan, 0.0)[order],
        np.full(len(order), np.inf),
        np.concatenate([none_of[: len(launches)], messages.path, none_of[len(launches) :]])[order].astype(np.int32),
        kind[order],
        round_[order].astype(np.int32),
        np.zeros(len(order), dtype=np.int32),
        after_starts,
        after,
        schedule.paths,
        (label,),
    )


def _chunk_bytes(schedule: Schedule, payload_bytes: int) -> Ints:
    """int64 [chunks]: the share of each chunk; their sum is the payload."""
    rows = np.array([rows for _, rows in schedule.chunks], dtype=np.int64)
    edges = np.concatenate([[0], np.cumsum(rows)])
    if not edges[-1]:
        return np.zeros(len(rows), dtype=np.int64)
    whole, rest = divmod(payload_bytes, int(edges[-1]))  # in parts, as rows times bytes can exceed 64 bits
    shares: Ints = np.diff(edges * whole + edges * rest // edges[-1])
    return shares


def _launches(messages: Messages, ranks: int) -> Ints:
    """Round times ranks plus rank, of every rank and round in which it sends or receives; ascending."""
    return distinct(np.concatenate([messages.round * ranks + end for end in (messages.src, messages.dst)]))


def _edges_of_values(
    schedule: Schedule, messages: Messages, places: PlaceNumbers, numbers: Sequence[Ints]
) -> list[tuple[Ints, Ints]]:
    """(task, task that waits for it): what messages and folds read, and who wrote it."""
    _, of_message, of_fold = numbers
    writer = np.full(places.count, -1, dtype=np.int64)
    writer[places.received] = of_message[messages.of_transfer]
    writer[places.folded] = of_fold
    edges = []
    for read, reader in ((places.sent, of_message[messages.of_transfer]), (places.operands, of_fold[places.fold_of])):
        written = writer[read] >= 0
        edges.append((writer[read][written], reader[written]))
    return edges


def _edges_of_launches(
    messages: Messages, launches: Ints, ranks: int, numbers: Sequence[Ints]
) -> list[tuple[Ints, Ints]]:
    """(task, task that waits for it): a message for the launches of both ends, a launch for the rank's round before."""
    of_launch, of_message, _ = numbers
    edges = []
    by_rank = np.argsort(launches % ranks, kind="stable")
    following = np.full(len(launches), -1, dtype=np.int64)
    same = launches[by_rank][1:] % ranks == launches[by_rank][:-1] % ranks
    following[by_rank[:-1][same]] = by_rank[1:][same]
    for end in (messages.src, messages.dst):
        own = np.searchsorted(launches, messages.round * ranks + end)
        edges.append((of_launch[own], of_message))
        after = following[own]
        edges.append((of_message[after >= 0], of_launch[after[after >= 0]]))
    return edges


def _columns(edges: list[tuple[Ints, Ints]], count: int) -> tuple[Ints, NDArray[np.int32]]:
    """(start of what each task comes after and the end, these tasks), each once."""
    before, after = (np.concatenate([edge[side] for edge in edges]) for side in (0, 1))
    keys = distinct(after * count + before)
    starts = np.concatenate([[0], np.cumsum(np.bincount(keys // count, minlength=count))]) if count else np.zeros(1)
    return starts.astype(np.int64), (keys % max(count, 1)).astype(np.int32)


def _fold_us(schedule: Schedule, sizes: Ints, gb_per_s: float) -> Floats:
    """float64 [combines]: each reads its operands and writes its result."""
    operands = np.diff(schedule.operand_starts)
    return (operands + 1) * sizes[schedule.combines[:, 3]] / (gb_per_s * 1e3)


_NONE: Ints = np.zeros(0, dtype=np.int64)
