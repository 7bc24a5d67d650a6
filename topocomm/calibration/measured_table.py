"""What a benchmark measured: one collective on one set of ranks, time by size."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Literal, NamedTuple

from topocomm.errors import TopologyError

Memory = Literal["device", "host"]

COLLECTIVES = {
    "allreduce": "allreduce",
    "allgather": "allgather",
    "reducescatter": "reduce_scatter",
    "broadcast": "broadcast",
    "bcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "alltoall": "alltoall",
    "sendrecv": "sendrecv",
    "barrier": "barrier",
}
"""Our names, by those of benchmarks without case, hyphens and underscores."""
RELATIVE_ERROR = 0.02
"""Most by which a bandwidth that a log prints may differ from bytes over time, beside rounding."""


class MeasuredRow(NamedTuple):
    """Payload in bytes, counted as plans count it, and the time of one call in us."""

    payload_bytes: int
    time_us: float


@dataclass(frozen=True)
class MeasuredTable:
    """Times of one collective.

    Attributes:
        name: Of the file, and of the table in it where it has several.
        collective: `allreduce`, `allgather`, `reduce_scatter`, `broadcast`, `reduce`, `gather`, `scatter`, `alltoall`,
            `barrier`; `sendrecv` (every rank sends to the next and receives from the one before), `message` (one-way
            time of a message between the ranks of a pair), `stream` (time of each of many messages in a row).
        library: As the log says: name and version.
        ranks: Number of ranks; None where the log does not say it.
        hosts: Number of hosts; None where the log does not say it.
        memory: Where the payload lies.
        pairs: Pairs at once, of `message` and `stream`.
        machine: Words of the source about the machine.
        env: Settings of the library, as far as known.
        suspect: Why the times must be neither fitted nor scored; None for others.
        warnings: What the reader could not check.
    """

    name: str
    source: str
    collective: str
    library: str
    ranks: int | None
    hosts: int | None
    rows: tuple[MeasuredRow, ...]
    memory: Memory = "device"
    pairs: int | None = None
    machine: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    suspect: str | None = None
    warnings: tuple[str, ...] = ()


def collective_named(text: str) -> str | None:
    """Return our name of a benchmark's collective (`all_reduce_perf`, `All-Reduce`), or None."""
    plain = re.sub(r"[-_ ]|(?:_perf)?$", "", text.removesuffix("_perf").lower())
    return COLLECTIVES.get(plain)


def checked_row(place: str, payload_bytes: int, time_us: float) -> MeasuredRow:
    """Return a row.

    Raises:
        TopologyError: The time is no positive number; the message begins with the place (file and line).
    """
    if not (isfinite(time_us) and time_us > 0):
        raise TopologyError(f"{place}: time {time_us:g} us: expected a time over 0; the log is no measurement")
    if payload_bytes < 0:
        raise TopologyError(f"{place}: {payload_bytes} bytes: expected 0 or more")
    return MeasuredRow(payload_bytes, time_us)


def check_bandwidth(place: str, row: MeasuredRow, printed: str, time_printed: str) -> None:
    """Check that a printed algorithm bandwidth in GB/s is bytes over time, within the digits of both figures.

    Raises:
        TopologyError: It is not.
    """
    expected = row.payload_bytes / row.time_us / 1e3
    slack = _last_digit(printed) + expected * (RELATIVE_ERROR + _last_digit(time_printed) / row.time_us)
    if abs(float(printed) - expected) > slack:
        raise TopologyError(
            f"{place}: algbw {printed} GB/s disagrees with {row.payload_bytes} bytes / {time_printed} us = "
            f"{expected:.4g} GB/s; the columns are not what they seem, or the log was edited"
        )


def _last_digit(text: str) -> float:
    """The unit of the last digit of a printed number."""
    mantissa, _, exponent = text.lower().partition("e")
    decimals = len(mantissa.partition(".")[2])
    return float(10.0 ** ((int(exponent) if exponent else 0) - decimals))


def increasing(rows: Iterable[MeasuredRow]) -> tuple[MeasuredRow, ...]:
    """Return the rows by size; of one size that was measured several times, the median."""
    by_size: dict[int, list[float]] = {}
    for row in rows:
        by_size.setdefault(row.payload_bytes, []).append(row.time_us)
    return tuple(MeasuredRow(size, sorted(times)[len(times) // 2]) for size, times in sorted(by_size.items()))
