"""What `amd-smi xgmi` says, whichever way it was printed."""

from __future__ import annotations

from typing import Any, NamedTuple

from topocomm.topology.inference.host_tree import PairKey

SENTINELS = {65535, 4294967295, 2**64 - 1}
"""All bits set: what the tool prints of a figure that the hardware does not have."""


class Metrics(NamedTuple):
    """One GPU of the link metric table. Figures in Gb/s, None if unknown; `read` has a cell per GPU, none if absent."""

    bit_rate: float | None
    max_bandwidth: float | None
    link_type: str
    read: tuple[str, ...]


class Listing(NamedTuple):
    """The three tables; one that was not printed is empty."""

    gpus: tuple[str, ...]
    bus_ids: dict[str, str | None]
    metrics: dict[str, Metrics]
    status: dict[PairKey, str]
    """Directed; `U`, `D` and `X` (up, down, disabled) for each link, between slashes. Own cells are left out."""
    ports: dict[str, list[str]]
    facts: dict[str, Any]
    warnings: list[str]


def figure(number: float) -> float | None:
    """A figure in Gb/s, whole numbers as such; None for a sentinel."""
    if number in SENTINELS:
        return None
    return int(number) if number == int(number) else number
