"""Parts of blocks, and the messages that carry them: what a mix of matchings becomes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from topocomm.planning.ways.folded_hosts import FoldedHosts

SAME = 1e-9
"""Blocks, or times, that differ by less are equal."""


class Part(NamedTuple):
    """Part of a block.

    Attributes:
        of: Its message.
        step: To which host after its own it goes.
        blocks: How much of the block it is.
        hops: (number in time, message) of each message that has carried it.
        onward: The message that is to carry it on; -1 without.
    """

    of: int
    step: int
    blocks: float
    hops: tuple[tuple[int, int], ...]
    onward: int = -1


def next_blocks(hosts: FoldedHosts, message: int, blocks: float, cut: list[float]) -> Iterator[tuple[int, float]]:
    """Yield (to which host after its own, part of that block) of the next blocks of a message; cut: those before."""
    away = bool(hosts.away[message])
    end = min(cut[message] + blocks, hosts.count - 1.0 if away else 1.0)
    while end - cut[message] > SAME:
        whole = int(cut[message] + SAME)
        own = min(end, whole + 1.0) - cut[message]
        yield (whole + 1 if away else 0), own
        cut[message] = min(end, whole + 1.0)
