"""What a rank that waits says of itself: the calls it has begun, and for whom it waits."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass

from topocomm.execute.recorder import Recorder


@dataclass(frozen=True)
class Standing:
    """One rank's word.

    Attributes:
        number: Of the call that it waits in.
        name: That call in words.
        awaits: Ranks that it waits for.
        begun: Tags of the last calls it has begun, by number.
    """

    number: int
    name: str
    awaits: list[int]
    begun: dict[int, int]

    def encode(self) -> bytes:
        """As a note."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, note: bytes) -> Standing:
        """From a note."""
        told = json.loads(note)
        begun = {int(number): tag for number, tag in told["begun"].items()}
        return cls(told["number"], told["name"], told["awaits"], begun)


def difference(recorder: Recorder, standing: Standing) -> int | None:
    """The first call that both ranks have begun and that is not the same on both."""
    for number in sorted(standing.begun):
        mine = recorder.tag(number)
        if mine and mine != standing.begun[number]:
            return number
    return None


def blame(rank: int, awaited: set[int], number: int, heard: Mapping[int, Standing], silent: Collection[int]) -> str:
    """Who is behind, in words: of the ranks awaited, and of those whom they await, the ones that are not waiting.

    A rank that waits in an earlier call is named too, and so are those that any of them waits for.

    Args:
        rank: This rank.
        awaited: Whom it awaits.
        number: Of the call that it waits in.
        heard: The last word of every rank heard of.
        silent: Ranks whose last word is too old: they waited then, and may have stopped since.
    """
    behind: list[str] = []
    seen = {rank}
    queue = sorted(awaited)
    while queue:
        peer = queue.pop(0)
        if peer in seen:
            continue
        seen.add(peer)
        standing = heard.get(peer)
        if standing is None:
            behind.append(f"rank {peer} (not heard of)")
            continue
        if peer in silent or standing.number < number or not standing.awaits:
            behind.append(f"rank {peer} (last heard of in {standing.name})")
        queue += standing.awaits
    return f"; behind: {', '.join(behind)}" if behind else ""
