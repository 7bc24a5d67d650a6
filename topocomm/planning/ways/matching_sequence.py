"""A mix of matchings one after the other: each message in the matchings that have room for it."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from topocomm.planning.ways.block_parts import SAME, Part, next_blocks
from topocomm.planning.ways.folded_hosts import FoldedHosts
from topocomm.planning.ways.matching_program import Mix

TURNS = 4
"""How often the matchings take turns where some blocks are relayed: what is sent on has come in a turn before."""
SLIVER = 1e-3
"""Part of a block that is no message of its own."""


def in_sequence(hosts: FoldedHosts, mix: Mix) -> list[Part]:
    """Return all parts of blocks, with their hops: what is relayed goes first on its first hop, last on its second."""
    slots, cut = _Slots(mix, TURNS if mix.relays else 1), [0.0] * len(hosts.ends)
    relayed = [
        (relay, step, at, own)
        for relay in mix.relays
        for step, blocks in next_blocks(hosts, relay.of, relay.blocks, cut)
        for at, own in slots.take(relay.first, blocks)
    ]
    parts = [
        Part(message, step, own, ((at, message),))
        for message in range(len(hosts.ends))
        for step, blocks in next_blocks(hosts, message, np.inf, cut)
        for at, own in slots.take(message, blocks)
    ]
    for relay, step, at, blocks in relayed:
        for then, own in slots.take(relay.second, blocks, at):
            parts.append(Part(relay.of, step, own, ((at, relay.first), (then, relay.second))))
    return parts


class _Slots:
    """What matchings, one after the other, have room for, by message."""

    def __init__(self, mix: Mix, turns: int) -> None:
        self.room: dict[int, list[tuple[int, float]]] = defaultdict(list)
        self.last = turns * len(mix.matchings)
        for turn in range(turns):
            for number, matching in enumerate(mix.matchings):
                for message, blocks in zip(matching.messages.tolist(), matching.blocks.tolist(), strict=True):
                    self.room[message].append((turn * len(mix.matchings) + number, blocks / turns))

    def take(self, message: int, blocks: float, after: int = -1) -> list[tuple[int, float]]:
        """Return (matching, blocks) of so many blocks of a message, in the first matchings with room after one.

        What finds none goes after all.
        """
        taken, left = list[tuple[int, float]](), list[tuple[int, float]]()
        for at, room in self.room[message]:
            if at <= after or blocks <= SAME or room < min(SLIVER, blocks):
                left.append((at, room))
                continue
            own = blocks if blocks - room < SLIVER else room
            taken.append((at, own))
            left.append((at, room - own))
            blocks -= own
        self.room[message] = left
        return taken if blocks <= SAME else [*taken, (max(self.last, after + 1), blocks)]
