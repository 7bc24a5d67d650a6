"""Findings of checks, and how those of all ranks become one list."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from topocomm.topology.draw.names import ranges

if TYPE_CHECKING:
    from topocomm.execute.communicator import Communicator

Level = Literal["ok", "info", "warn", "FAIL"]
Environment = Mapping[str, str]
FindVersion = Callable[[str], str | None]


class Finding(NamedTuple):
    """Result of one check: its level, name, text and remedy."""

    level: Level
    check: str
    text: str
    remedy: str = ""


def usable_cores() -> frozenset[int]:
    """Return the cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def gather_json(comm: Communicator, value: Any) -> list[Any]:
    """Gather every rank's value in rank order; collective."""
    import numpy as np

    data = np.frombuffer(json.dumps(value).encode(), np.uint8)
    lengths = [int(one.view(np.int64)[0]) for one in comm.allgather_bytes(np.array([data.size]).view(np.uint8))]
    padded = np.full(max(lengths), ord(" "), np.uint8)
    padded[: data.size] = data
    return [json.loads(record.tobytes()) for record in comm.allgather_bytes(padded)]


def union(by_rank: Sequence[Sequence[Finding]]) -> list[Finding]:
    """Return each finding once, in the order of the checks, naming the ranks if not all have it."""
    holders: dict[Finding, list[int]] = {}
    for rank, findings in enumerate(by_rank):
        for finding in findings:
            holders.setdefault(finding, []).append(rank)
    order = list(dict.fromkeys(finding.check for findings in by_rank for finding in findings))
    merged = []
    for finding, ranks in sorted(holders.items(), key=lambda pair: order.index(pair[0].check)):
        everyone = len(set(ranks)) == len(by_rank)
        who = "" if everyone else f"rank{'s' * (len(set(ranks)) > 1)} {ranges([str(rank) for rank in ranks])}: "
        merged.append(finding._replace(text=who + finding.text))
    return merged
