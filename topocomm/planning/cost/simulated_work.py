"""What is simulated: messages and phases of computing, each after others, as columns.

A task is a message from one device to another, or a phase in which an endpoint computes. Columns and not objects: a
collective of 16,384 ranks has millions of tasks. `WorkBuilder` takes many at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from topocomm.errors import PlanError
from topocomm.planning.routing.routes import Floats, Ints
from topocomm.planning.schedule.schedule import NO_PATH

SEND, COMPUTE, JOIN = 0, 1, 2
"""Kinds of tasks: a message; a phase of computing, one at a time on an endpoint; a point that waits for others and
holds nothing, such as a fold that costs nothing."""
NO_TASK = -1
"""Entry of `after` that names no task."""
ROUTE_LATENCY = np.nan
"""Latency of a message that takes what its route takes."""
_TYPES = (np.int32, np.int32, np.int64, float, float, float, np.int32, np.int8, np.int32)
"""Types of the columns of a task but its label."""


@dataclass(frozen=True, eq=False)
class Work:
    """Tasks by number, as columns; `check_work` tells whether they can be simulated.

    A message starts when all tasks it comes after have arrived and its ports admit it, spends `before_us`, flows, and
    arrives `latency_us` after its last byte. Other kinds of tasks are on one device and take `before_us`.

    Attributes:
        devices: Ids of the devices that tasks are on: endpoints, and switches that fold.
        src: int32 [n]: index into `devices`: where the message comes from, or where another task is.
        dst: int32 [n]: where the message goes; of other tasks the same as `src`.
        payload_bytes: int64 [n]: bytes of a message; 0 of other tasks.
        before_us: float64 [n]: time from the start to the first byte; the duration of other tasks.
        latency_us: float64 [n]: time from the last byte to the arrival; NaN: that of the route.
        most_gb_per_s: float64 [n]: rate that the message cannot exceed, infinite without such a limit.
        path: int32 [n]: index into `paths`, or NO_PATH for the cheapest route.
        kind: int8 [n]: SEND, COMPUTE or JOIN.
        round: int32 [n]: round of the task within its label, for texts.
        label: int32 [n]: index into `labels`.
        after_starts: int64 [n + 1]: task i comes after the tasks after[after_starts[i]:after_starts[i + 1]].
        after: int32: numbers of tasks, each less than that of the task that waits for it.
        paths: Device ids from source to destination.
        labels: Names of what tasks are part of ("allreduce ring", "attention").
    """

    devices: tuple[str, ...]
    src: NDArray[np.int32]
    dst: NDArray[np.int32]
    payload_bytes: Ints
    before_us: Floats
    latency_us: Floats
    most_gb_per_s: Floats
    path: NDArray[np.int32]
    kind: NDArray[np.int8]
    round: NDArray[np.int32]
    label: NDArray[np.int32]
    after_starts: Ints
    after: NDArray[np.int32]
    paths: tuple[tuple[str, ...], ...] = ()
    labels: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.src)

    @property
    def messages(self) -> int:
        """Number of tasks that are messages."""
        return int((self.kind == SEND).sum())

    @property
    def sent_bytes(self) -> int:
        """Bytes of all messages."""
        return int(self.payload_bytes.sum())


class WorkBuilder:
    """Tasks in the making. Ports serve messages in the order in which they are added.

    Example:
        A message from rank 0 to each of the others, then 5 us of computing on these:

            builder = WorkBuilder(topology.endpoints)
            sent = builder.send(0, [1, 2, 3], 1 << 20, label="broadcast")
            builder.compute([1, 2, 3], 5.0, after=sent, label="attention")
            timeline = simulate(builder.build(), topology)
    """

    def __init__(self, devices: Sequence[str]) -> None:
        """Take the ids of the devices that tasks are on; tasks name them by their index here."""
        self._devices = tuple(devices)
        self._columns: list[tuple[NDArray[Any], ...]] = []
        self._after: list[tuple[Ints, NDArray[np.int32]]] = []
        self._labels: dict[str, int] = {}
        self._paths: dict[tuple[str, ...], int] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def path(self, devices: Sequence[str]) -> int:
        """Return the number of a path, the device ids from source to destination, for `send`."""
        return self._paths.setdefault(tuple(devices), len(self._paths))

    def send(  # noqa: PLR0913 - the columns of a message, all but three keyword-only
        self,
        src: ArrayLike,
        dst: ArrayLike,
        payload_bytes: ArrayLike,
        *,
        after: ArrayLike | None = None,
        before_us: ArrayLike = 0.0,
        latency_us: ArrayLike = ROUTE_LATENCY,
        most_gb_per_s: ArrayLike = np.inf,
        path: ArrayLike = NO_PATH,
        round_: ArrayLike = 0,
        label: str = "",
    ) -> Ints:
        """Add n messages and return their numbers, int64 [n]; every argument is one value, or one for each message.

        Args:
            src: Indices of the sending devices.
            dst: Indices of the receiving devices.
            payload_bytes: Bytes of each message.
            after: int [n] or [n, k]: numbers of the tasks that each message waits for; NO_TASK for none.
            before_us: Time from the start of the message to its first byte.
            latency_us: Time from the last byte to the arrival; NaN takes the latency of the route.
            most_gb_per_s: Limit on the rate, as of one channel or one protocol.
            path: Numbers from `path`, or NO_PATH for the cheapest route.
            round_: Rounds of the messages, for texts.
            label: What the messages are part of.
        """
        return self._add(
            (src, dst, payload_bytes, before_us, latency_us, most_gb_per_s, path, SEND, round_), after, label
        )

    def compute(
        self,
        device: ArrayLike,
        duration_us: ArrayLike,
        *,
        after: ArrayLike | None = None,
        round_: ArrayLike = 0,
        label: str = "",
    ) -> Ints:
        """Add n phases of computing of `duration_us` each and return their numbers; `after` as of `send`."""
        return self._add((device, device, 0, duration_us, 0.0, np.inf, NO_PATH, COMPUTE, round_), after, label)

    def join(
        self, device: ArrayLike, *, after: ArrayLike, before_us: ArrayLike = 0.0, round_: ArrayLike = 0, label: str = ""
    ) -> Ints:
        """Add n points that wait for the tasks `after`, and for `before_us` then, and return their numbers."""
        return self._add((device, device, 0, before_us, 0.0, np.inf, NO_PATH, JOIN, round_), after, label)

    def join_groups(self, device: Ints, counts: Ints, after: Ints, *, label: str = "") -> Ints:
        """Add n points, the i-th waiting for the next `counts[i]` tasks of `after`, and return their numbers."""
        n = len(device)
        values: tuple[ArrayLike, ...] = (device, device, 0, 0.0, 0.0, np.inf, NO_PATH, JOIN, 0)
        own = [np.array(np.broadcast_to(value, n), dtype=kind) for value, kind in zip(values, _TYPES, strict=True)]
        return self._append(own, label, counts.astype(np.int64), after.astype(np.int32))

    def include(self, work: Work, entry: Ints, label: str | None = None) -> Ints:
        """Add the tasks of another work and return their numbers, int64 [its tasks].

        Args:
            work: Work on devices of this builder.
            entry: int64 [devices of `work`]: a task that each task on a device waits for (its source, of a message);
                NO_TASK for none.
            label: Name of all its tasks; None keeps their own.

        Raises:
            PlanError: It is on a device that this builder does not have.
        """
        known = {name: number for number, name in enumerate(self._devices)}
        missing = [name for name in work.devices if name not in known]
        if missing:
            here = ", ".join(self._devices[:8])
            raise PlanError(f"work on {missing[0]}: expected devices of the builder, {here}")
        number = np.array([known[name] for name in work.devices], dtype=np.int32)
        paths = np.array([*(self.path(path) for path in work.paths), NO_PATH], dtype=np.int32)
        own: list[NDArray[Any]] = [number[work.src], number[work.dst], work.payload_bytes, work.before_us]
        own += [work.latency_us, work.most_gb_per_s, paths[work.path], work.kind, work.round]
        first = entry[work.src]
        enters = first != NO_TASK
        counts = np.diff(work.after_starts) + enters
        after = np.empty(int(counts.sum()), dtype=np.int32)
        ends = np.cumsum(counts)
        begins = np.zeros(len(after), dtype=bool)
        begins[ends[enters] - 1] = True
        after[begins] = first[enters]
        after[~begins] = work.after + self._count
        if label is not None:
            return self._append(own, label, counts, after)
        labels = np.array([self._label(name) for name in work.labels], dtype=np.int32)
        return self._append(own, labels[work.label], counts, after)

    def build(self) -> Work:
        """Return the work.

        Raises:
            PlanError: A task is impossible; the message names it.
        """
        columns = [
            np.concatenate([part[column] for part in self._columns]).astype(kind, copy=False)
            if self._columns
            else np.zeros(0, dtype=kind)
            for column, kind in enumerate((*_TYPES, np.int32))
        ]
        counts = np.concatenate([np.zeros(1, dtype=np.int64), *(count for count, _ in self._after)])
        after = np.concatenate([np.zeros(0, dtype=np.int32), *(tasks for _, tasks in self._after)])
        src, dst, payload_bytes, before_us, latency_us, most, path, kind, round_, label = columns
        work = Work(
            self._devices,
            src,
            dst,
            payload_bytes,
            before_us,
            latency_us,
            most,
            path,
            kind,
            round_,
            label,
            np.cumsum(counts),
            after,
            tuple(self._paths),
            tuple(self._labels),
        )
        check_work(work)
        return work

    def _add(self, columns: tuple[ArrayLike, ...], after: ArrayLike | None, label: str) -> Ints:
        waits = np.full((1, 1), NO_TASK) if after is None else np.asarray(after)
        if not waits.size:
            waits = np.full((1, 1), NO_TASK)
        waits = waits.reshape(1, 1) if waits.ndim == 0 else waits[:, None] if waits.ndim == 1 else waits
        parts = np.broadcast_arrays(*map(np.atleast_1d, columns), waits[:, 0])
        # copied where they were broadcast: a view of the caller's array could change before build()
        own = [np.array(part, dtype=kind) for part, kind in zip(parts[:-1], _TYPES, strict=True)]
        waits = np.broadcast_to(waits, (len(own[0]), waits.shape[1]))
        named = waits != NO_TASK
        return self._append(own, label, named.sum(axis=1), waits[named].astype(np.int32))

    def _append(
        self,
        columns: Sequence[NDArray[Any]],
        label: str | NDArray[np.int32],
        counts: Ints,
        after: NDArray[np.int32],
    ) -> Ints:
        """Add tasks by their columns but the label, which is one for all or a number for each."""
        n = len(columns[0])
        labels = np.full(n, self._label(label), dtype=np.int32) if isinstance(label, str) else label
        self._columns.append((*columns, labels))
        self._after.append((counts, after))
        numbers = np.arange(self._count, self._count + n)
        self._count += n
        return numbers

    def _label(self, name: str) -> int:
        return self._labels.setdefault(name, len(self._labels))


def distinct(numbers: Ints) -> Ints:
    """Return the numbers in ascending order, each once; by sorting, several times as fast as np.unique."""
    if len(numbers) < 2:
        return numbers
    numbers = np.sort(numbers)
    first = np.empty(len(numbers), dtype=bool)
    first[0] = True
    np.not_equal(numbers[1:], numbers[:-1], out=first[1:])
    return numbers if first.all() else numbers[first]


def check_work(work: Work) -> None:
    """Check that every task can be simulated.

    Raises:
        PlanError: A task names no device, has an impossible figure or waits for a task that is not before it.
    """
    n, devices = len(work), len(work.devices)
    waiting = np.repeat(np.arange(n), np.diff(work.after_starts))
    early = waiting[(work.after < 0) | (work.after >= waiting)]
    with np.errstate(invalid="ignore"):
        faults = [
            ((work.src < 0) | (work.src >= devices), f"its source is none of the {devices} devices"),
            ((work.dst < 0) | (work.dst >= devices), f"its destination is none of the {devices} devices"),
            (work.payload_bytes < 0, "expected at least 0 bytes"),
            (~((work.before_us >= 0) & (work.before_us < np.inf)), "expected a time of at least 0 us before it"),
            ((work.latency_us < 0) | np.isinf(work.latency_us), "expected a latency of at least 0 us, or NaN"),
            (~(work.most_gb_per_s > 0), "expected a rate limit above 0 GB/s, infinite for none"),
            ((work.path < NO_PATH) | (work.path >= len(work.paths)), f"its path is none of the {len(work.paths)}"),
        ]
    for faulty, why in faults:
        if faulty.any():
            raise PlanError(f"task {describe(work, int(np.flatnonzero(faulty)[0]))}: {why}")
    if len(early):
        raise PlanError(f"task {describe(work, int(early[0]))}: expected that it waits for tasks with lower numbers")


def describe(work: Work, task: int) -> str:
    """Return number, label, round and ends of a task in words."""
    named = work.labels[work.label[task]] if 0 <= work.label[task] < len(work.labels) else ""
    ends = [
        str(work.devices[end]) if 0 <= end < len(work.devices) else str(end) for end in (work.src[task], work.dst[task])
    ]
    where = ends[0] if work.kind[task] != SEND else f"{ends[0]} -> {ends[1]}"
    return " ".join(part for part in (str(task), named, f"round {work.round[task]}", where) if part)
