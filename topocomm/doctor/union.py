"""The findings of all ranks as one list that names ranks where they differ."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from topocomm.doctor.finding import Finding
from topocomm.execute.communicator import Communicator
from topocomm.topology.draw.names import ranges


def gather_json(comm: Communicator, value: Any) -> list[Any]:
    """Every rank's value, in rank order; collective."""
    data = np.frombuffer(json.dumps(value).encode(), np.uint8)
    lengths = [int(one.view(np.int64)[0]) for one in comm.allgather_bytes(np.array([data.size]).view(np.uint8))]
    padded = np.full(max(lengths), ord(" "), np.uint8)
    padded[: data.size] = data
    return [json.loads(record.tobytes()) for record in comm.allgather_bytes(padded)]


def union(by_rank: Sequence[Sequence[Finding]]) -> list[Finding]:
    """Each finding once, in the order of the checks; where not all ranks have it, those that do are named."""
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
