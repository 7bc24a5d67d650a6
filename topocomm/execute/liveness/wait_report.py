"""What ranks that wait say: the calls they have begun, for whom they wait, and what they know of those.

So word of a rank far down a chain of ranks that wait for each other comes to its other end, turn by turn.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import NamedTuple

from topocomm.execute.liveness.recorder import Recorder

MOST_PASSED_ON = 64
"""Most ranks in a note beside its sender."""
SILENT_AFTER = 2.5
"""Turns without a word after which a rank that said that it waits may have stopped. A word passed on may be older by a
turn for each rank that did so."""


class WaitEntry(NamedTuple):
    """State of a waiting rank as known here: fields as of `WaitReport`."""

    number: int
    name: str
    awaits: list[int]
    age_s: float
    """How long ago it said so."""
    hops: int
    """How many ranks passed it on."""


@dataclass(frozen=True)
class WaitReport:
    """Report of a waiting rank on itself.

    Attributes:
        number: Of the call that it waits in.
        name: That call in words.
        awaits: Ranks that it waits for.
        begun: Tags of the last calls it has begun, by number.
        others: What it knows of ranks that it waits for, and of those that they wait for.
        claim: What it claims of a call that is being agreed upon, by part; with an `error` it refuses its arrays.
    """

    number: int
    name: str
    awaits: list[int]
    begun: dict[int, int]
    others: dict[int, WaitEntry] = field(default_factory=dict)
    claim: Mapping[str, str] = field(default_factory=dict)

    def encode(self) -> bytes:
        """Encode as a note."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, note: bytes) -> WaitReport:
        """Decode a note."""
        report = json.loads(note)
        report["begun"] = {int(number): tag for number, tag in report["begun"].items()}
        report["others"] = {int(peer): WaitEntry(*entry) for peer, entry in report["others"].items()}
        return cls(**report)


class ReportTable:
    """Reports that a rank has received.

    Attributes:
        reports: The last word of every rank heard of.
    """

    def __init__(self) -> None:
        self.reports: dict[int, WaitReport] = {}
        self._when_s: dict[int, float] = {}

    def take(self, peer: int, report: WaitReport, now_s: float) -> None:
        """Add a report."""
        self.reports[peer] = report
        self._when_s[peer] = now_s

    def waiting_for(self, rank: int, now_s: float, turn_s: float) -> set[int]:
        """Ranks that wait for `rank` and have said so of late, in whatever call."""
        return {
            peer
            for peer, report in self.reports.items()
            if rank in report.awaits and now_s - self._when_s[peer] <= SILENT_AFTER * turn_s
        }

    def words(self, now_s: float) -> dict[int, WaitEntry]:
        """Return the newest report of every rank, its own or passed on."""
        words: dict[int, WaitEntry] = {}
        for peer, report in self.reports.items():
            since_s = now_s - self._when_s[peer]
            known = {peer: WaitEntry(report.number, report.name, report.awaits, since_s, 0)}
            for other, word in report.others.items():
                known[other] = word._replace(age_s=word.age_s + since_s, hops=word.hops + 1)
            for other, word in known.items():
                if other not in words or word.age_s < words[other].age_s:
                    words[other] = word
        return words


def difference(recorder: Recorder, report: WaitReport) -> int | None:
    """The first call that both ranks have begun and that is not the same on both."""
    return next((n for n in sorted(report.begun) if recorder.tag(n) not in (0, report.begun[n])), None)


def apart(rank: int, own: Mapping[str, str], peer: int, theirs: Mapping[str, str]) -> str | None:
    """Return in what two ranks' claims of one collective by one operator differ; of the fields the first one in full.

    None where they are of different calls, or say too little.
    """
    parts = [part for part, value in own.items() if theirs.get(part, value) != value]
    parts += [part for part in (*own, *theirs) if part.startswith("field ") and not (part in own and part in theirs)]
    if not all("collective" in claim for claim in (own, theirs)) or not parts or parts[0] in ("collective", "operator"):
        return None
    first, more = parts[0], sum(part.startswith("field ") for part in parts[1:])
    rest = f", likewise {more} more field{'s' * (more > 1)}" if more and first.startswith("field ") else ""
    return f"{first} (rank {rank}: {own.get(first, 'none')}; rank {peer}: {theirs.get(first, 'none')}){rest}"


def reached(rank: int, awaited: Iterable[int], words: Mapping[int, WaitEntry]) -> dict[int, WaitEntry | None]:
    """The ranks awaited, those whom they await, and so on, nearest first, each with what is known of it."""
    known: dict[int, WaitEntry | None] = {}
    queue = sorted(awaited)
    for peer in queue:  # which grows
        if peer != rank and peer not in known:
            word = known[peer] = words.get(peer)
            queue += [] if word is None else word.awaits
    return known


def passed_on(rank: int, awaited: Iterable[int], words: Mapping[int, WaitEntry]) -> dict[int, WaitEntry]:
    """Return what this rank tells others of the ranks that it awaits, and of those that they await."""
    known = [(peer, word) for peer, word in reached(rank, awaited, words).items() if word is not None]
    return dict(known[:MOST_PASSED_ON])


def blame(
    rank: int, awaited: Iterable[int], number: int, words: Mapping[int, WaitEntry], turn_s: float, silence: str
) -> str:
    """Who is behind, in words: of the ranks awaited, and of those whom they await, the ones that are not waiting.

    A rank that waits in a call before the one with this number is named too, and so are those that any of them waits
    for. Ranks that wait say so every `turn_s` seconds; `silence` is what is said of one that never did.
    """
    behind: list[str] = []
    for peer, word in reached(rank, awaited, words).items():
        if word is None:
            behind.append(f"rank {peer} ({silence})")
        elif word.number < number or not word.awaits or word.age_s > (SILENT_AFTER + word.hops) * turn_s:
            behind.append(f"rank {peer} (last heard of {word.age_s:.1f} s ago, in {word.name})")
    return f"; behind: {', '.join(behind)}" if behind else ""
