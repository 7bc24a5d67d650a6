"""Waiting with a time limit, and finding out meanwhile why nothing comes.

While a rank waits it looks, slice by slice, whether a process has ended, whether a rank has reported a failure, and
what the ranks that it awaits are doing: those that wait tell those whom they await which calls they have begun, and are
told in return. Two ranks whose n-th calls differ raise MismatchError at once, each naming the other. A wait that
reaches its limit raises DeadlineError: call, round, ranks and bytes awaited, and who is behind. After 10 s rank 0 says
once whom it awaits.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from topocomm.errors import DeadlineError, MismatchError, RankFailedError, TopocommError
from topocomm.execute.liveness.call_trace import CallTrace
from topocomm.execute.liveness.exception_hook import show_on
from topocomm.execute.liveness.pollable import AwaitedMessages, Pollable
from topocomm.execute.liveness.recorder import KEPT, Recorder
from topocomm.execute.liveness.wait_report import ReportTable, WaitReport, apart, blame, difference, passed_on
from topocomm.execute.transports.transport import (
    AGREEMENT_TAG,
    FAILURE_TAG,
    GATHER_TAG,
    REFUSED_TAG,
    REPORT_TAG,
    Message,
    Transport,
)

SPIN_S = 0.001
"""Seconds of polling before the reason of a wait is examined."""
SLICE_S = 0.05
TURN_S = 0.0002
"""Seconds of one turn of several calls in flight."""
FIRST_LOOK_S = 0.02
TELL_AFTER_S = 0.2
"""Seconds of a wait before ranks are told of it; shorter ones are normal where work differs."""
TELL_AGAIN_S = 1.0
SAY_AFTER_S = 10.0
AWAY_S = 1.0
"""Who has not asked for longer than this did something else meanwhile, and has not waited."""
LAST_WORDS_S = 0.1
TEXT_CHARACTERS = 800
"""Characters of an error that other ranks hear of."""
BARRIER_WORDS = "(a barrier)"
"""What the words for a barrier end with."""
SHRINK = "go on with the others: comm.shrink()"
Chain = frozenset[tuple[int, ...]]
"""Of every rank in a chain of waits: itself, the call that it is in, whom it awaits."""
FAILURES: dict[str, type[TopocommError]] = {
    "DeadlineError": DeadlineError,
    "MismatchError": MismatchError,
    "RankFailedError": RankFailedError,
}


@dataclass(eq=False)
class UnderWay:
    """A call in flight on this rank.

    Attributes:
        engine: What runs it; None for an exchange of notes.
        number: Sequence number of the call on the communicator.
        what: The call in words.
        withdraw: Lets no rank read the caller's value any more; after a failure.
    """

    engine: Pollable | None
    tag: int
    number: int
    what: str = ""
    withdraw: Callable[[], None] = lambda: None
    suspects: frozenset[int] = frozenset()
    """Awaited ranks that the last look found gone."""


@dataclass
class Waiting:
    """Waiting of one communicator."""

    transport: Transport
    timeout_s: float
    describe: Callable[[int], str]
    recorder: Recorder
    under_way: list[UnderWay] = field(default_factory=list)
    """Calls begun by `start` that are not through; all of them move on in every wait."""
    said: set[str] = field(default_factory=set)
    refused: dict[int, dict[int, str]] = field(default_factory=dict)
    """Calls that other ranks did not make, by number, each with the reason."""
    reports: ReportTable = field(default_factory=ReportTable)
    """What ranks that wait for this one, or answered it, have said."""
    limit: str = "TOPOCOMM_TIMEOUT_S"
    """Name of what set the time limit."""
    remedy: str = SHRINK
    """What the program can do when ranks are gone."""
    in_step: set[int] = field(default_factory=lambda: {AGREEMENT_TAG, GATHER_TAG})
    """Tags of calls that are through on no rank before every rank has begun them."""
    claims: dict[int, Mapping[str, str]] = field(default_factory=dict)
    """What all ranks claimed of the calls agreed upon, by tag; of the agreement under way, by its tag."""
    trace: CallTrace | None = None
    """Where calls prepared now note what they do and when."""

    def for_call(self, call: UnderWay, timeout_s: float | None = None) -> None:
        """Wait for an incomplete call.

        Raises:
            DeadlineError: The limit is reached.
            MismatchError: Another rank makes another call.
            RankFailedError: A rank failed.
        """
        assert call.engine is not None, "an exchange of notes is awaited note by note"
        engine = call.engine
        if engine.advance(SPIN_S if not self.under_way else 0.0):
            return
        look = WaitMonitor(self, call, self.timeout_s if timeout_s is None else timeout_s)
        while True:
            self._advance_others(engine)
            if engine.advance(TURN_S if self.under_way else SLICE_S):
                return
            look.at_times(engine.awaited)

    def for_note(self, peer: int, tag: int, what: str) -> bytes:
        """Wait for a note from `peer`; raises like `for_call`."""
        look = WaitMonitor(self, UnderWay(None, tag, self.recorder.calls, what), self.timeout_s)
        awaited = AwaitedMessages(0, (), (Message(peer, ()),))
        while (data := self.transport.take(peer, tag)) is None:
            self._advance_others(None)
            look.at_times(lambda: awaited)
            self.transport.pause()
        return data

    def for_close(self, call: UnderWay) -> None:
        """Wait until all ranks close the communicator; raises like `for_call`."""
        rank = self.transport.rank
        everyone = AwaitedMessages(0, (), [Message(peer, ()) for peer in range(self.transport.size) if peer != rank])
        look = WaitMonitor(self, call, self.timeout_s)
        while not self.transport.close(SLICE_S):
            look.at_times(lambda: everyone)

    def check(self, call: UnderWay, awaited: Callable[[], AwaitedMessages]) -> None:
        """Look once whether `call` can still come through; raises like `for_call`."""
        waits = awaited()
        self._failures(call, _peers(waits))
        self._refusals(call)
        self._hear(call, awaited)

    def patience(self, waited_s: float, limit_s: float, call: UnderWay, awaited: AwaitedMessages) -> None:
        """Say that this rank waits long, or raise DeadlineError where it has waited its time."""
        if waited_s < SAY_AFTER_S and waited_s < limit_s:
            return
        rank, name = self.transport.rank, self._name(call)
        parts = [f"rank {m.peer}{f' ({m.payload_bytes} bytes from it)' * bool(m.ranges)}" for m in awaited.receives]
        parts += [f"rank {m.peer} (to take {m.payload_bytes} bytes)" for m in awaited.sends]
        earlier = bool(parts) and awaited.stage is not None and awaited.stage < 0
        whom = (", ".join(parts) or "messages under way") + " to finish an earlier call" * earlier
        if waited_s >= limit_s:
            round_ = "" if call.engine is None or awaited.stage is None else f", round {awaited.stage + 1}"
            words = self.reports.words(time.monotonic())
            silence = self._silence(call.number)
            behind = blame(rank, _peers(awaited), call.number, words, _tell_again_s(limit_s), silence)
            raise DeadlineError(
                f"rank {rank}: {name}{round_}: still waiting for {whom} after {limit_s:g} s "
                f"(limit: {self.limit}){behind}"
            )
        if rank == 0 and name not in self.said:
            self.said.add(name)
            sys.stderr.write(f"topocomm: rank 0 has waited {waited_s:.0f} s in {name} for {whom}\n")
            sys.stderr.flush()

    def _silence(self, number: int) -> str:
        """Since when a rank that said nothing while it waited was not heard of, in the call with this number."""
        under_way = {call.number for call in self.under_way}
        for earlier in range(number - 1, max(0, number - KEPT), -1):
            if (tag := self.recorder.tag(earlier)) in self.in_step and earlier not in under_way:
                name = self._name(UnderWay(None, tag, earlier))
                return f"not heard of since {name}, {self.recorder.age_s(earlier):.1f} s ago"
        return "not heard of since this communicator was made" if number else "not heard of yet"

    def tell(self, call: UnderWay, awaited: AwaitedMessages, peers: Iterable[int]) -> None:
        """Tell `peers` which calls this rank has begun, and for whom it waits."""
        awaits = sorted(_peers(awaited))
        others = passed_on(self.transport.rank, awaits, self.reports.words(time.monotonic()))
        claim = self._claim(call) if call.tag == AGREEMENT_TAG else {}
        report = WaitReport(call.number, self._name(call), awaits, self.recorder.latest(), others, claim)
        note = report.encode()
        for peer in peers:
            self.transport.post(peer, REPORT_TAG, note)

    def awaiting(self) -> set[int]:
        """Ranks that wait for this one: they blame by what they know of whom it awaits."""
        return self.reports.waiting_for(self.transport.rank, time.monotonic(), _tell_again_s(self.timeout_s))

    def chain(self, awaited: Iterable[int]) -> Chain:
        """What is known of ranks awaited and of those whom they await, apart from how old that is."""
        known = passed_on(self.transport.rank, awaited, self.reports.words(time.monotonic()))
        return frozenset((peer, word.number, *word.awaits) for peer, word in known.items())

    def _advance_others(self, engine: Pollable | None) -> None:
        """Let every call that is under way move on, other than that of `engine`."""
        for other in self.under_way:
            if other.engine is not None and other.engine is not engine:
                other.engine.advance(0.0)

    def _name(self, call: UnderWay) -> str:
        return call.what or f"call {self.recorder.users_number(call.number)} ({self.describe(call.tag)})"

    def _failures(self, call: UnderWay, awaited: Collection[int]) -> None:
        """Raise what ranks report, and that one of those awaited is gone; another one may have done its part.

        A rank counts as gone when two looks find it so: what it did last may come between them.
        """
        rank = self.transport.rank
        for _, note in self._notes(FAILURE_TAG):
            raise _reported(rank, json.loads(note))
        suspects = {peer: how for peer, how in self.transport.failed().items() if peer in awaited}
        gone = {peer: how for peer, how in suspects.items() if peer in call.suspects}
        call.suspects = frozenset(suspects)
        until_s = time.monotonic() + LAST_WORDS_S
        while gone and time.monotonic() < until_s:  # what they had reported may still come
            for peer in gone:
                last_note = self.transport.take(peer, FAILURE_TAG)
                if last_note is not None:
                    raise _reported(rank, json.loads(last_note))
            self.transport.pause()
        if gone:
            raise rank_failed(rank, gone, self.remedy)

    def _refusals(self, call: UnderWay) -> None:
        for peer, note in self._notes(REFUSED_TAG):
            refusal = json.loads(note)
            self.refused.setdefault(peer, {})[refusal["number"]] = refusal["text"]
        for peer, calls in self.refused.items():
            if call.number in calls:
                what, text = f"rank {self.transport.rank}: {self._name(call)}", calls[call.number]
                refused = MismatchError(f"{what}: rank {peer} refused its arrays: {text}")
                show_on(refused, self.transport, peer)
                raise refused
            for number in [number for number in calls if number < call.number]:
                del calls[number]

    def _hear(self, call: UnderWay, awaited: Callable[[], AwaitedMessages]) -> None:
        for peer, note in dict(self._notes(REPORT_TAG)).items():  # the newest of each
            known, report = self.reports.reports.get(peer), WaitReport.decode(note)
            self.reports.take(peer, report, time.monotonic())
            if known is None or known.number != report.number:
                self.tell(call, awaited(), [peer])
        for peer, report in self.reports.reports.items():
            number = difference(self.recorder, report)
            if number is not None:
                own = call if number == call.number else UnderWay(None, self.recorder.tag(number), number)
                raise self._mismatch(own, peer, report)

    def _mismatch(self, own: UnderWay, peer: int, report: WaitReport) -> MismatchError:
        """Return the error that another call has the number of a call of this rank, or that one refused its arrays."""
        rank, name, in_it = self.transport.rank, self._name(own), own.number == report.number
        begun = UnderWay(None, report.begun[own.number], own.number)
        other, claim = report.name if in_it else self._name(begun), self._claim(own)
        theirs = report.claim if in_it and begun.tag == AGREEMENT_TAG else self._claim(begun)
        if "error" in theirs or "error" in claim:
            blamed, shown = (peer, name) if "error" in theirs else (rank, other)
            words = f"rank {blamed} refused its arrays: {(theirs if blamed == peer else claim)['error']}"
            mismatch = MismatchError(f"rank {rank}: {shown}: {words}")
            show_on(mismatch, self.transport, blamed)
            return mismatch
        order = "all ranks must make the same calls in the same order"
        differ = None if BARRIER_WORDS in name + other else apart(rank, claim, peer, theirs)
        if differ is not None:
            call = f"{claim['collective']} {claim['operator']}".removesuffix(" None")
            mismatch = MismatchError(
                f"rank {rank}: call {self.recorder.users_number(own.number)} ({call}) is another one on rank {peer}: "
                f"{differ}; {order}"
            )
        else:
            mismatch = MismatchError(f"rank {rank}: rank {peer} makes {other}, this rank {name}; {order}")
        show_on(mismatch, self.transport, min(peer, rank))
        return mismatch

    def _claim(self, call: UnderWay) -> Mapping[str, str]:
        is_earlier_agreement = call.tag == AGREEMENT_TAG and not call.what
        return {} if is_earlier_agreement else self.claims.get(call.tag, {})

    def sweep(self) -> None:
        """Take in what others told a rank that never waited long enough to ask: it must not pile up."""
        for peer, note in self._notes(REPORT_TAG):
            self.reports.take(peer, WaitReport.decode(note), time.monotonic())

    def _notes(self, tag: int) -> Iterator[tuple[int, bytes]]:
        for peer in range(self.transport.size):
            while peer != self.transport.rank and (note := self.transport.take(peer, tag)) is not None:
                yield peer, note


class WaitMonitor:
    """One wait's times to look for reasons."""

    def __init__(self, waiting: Waiting, call: UnderWay, limit_s: float) -> None:
        self._waiting, self._call, self._limit_s = waiting, call, limit_s
        self._last_s = self._began_s = time.monotonic()
        self._next_s = self._began_s + min(FIRST_LOOK_S, limit_s / 4)
        self._tell_s = self._began_s + min(TELL_AFTER_S, limit_s / 4)
        self._told: set[int] = set()
        """Whom this rank awaited when it last said so."""
        self._chain: Chain = frozenset()
        """What it knew of them then, and of those whom they await."""

    def at_times(self, awaited: Callable[[], AwaitedMessages]) -> None:
        """Examine the wait, if it is time."""
        now_s = time.monotonic()
        self._began_s += max(0.0, now_s - self._last_s - AWAY_S)
        self._last_s = now_s
        if now_s < self._next_s:
            return
        self._next_s = now_s + min(SLICE_S, self._limit_s / 4)
        waits = awaited()
        peers = _peers(waits)
        if now_s >= self._tell_s or (self._told and peers != self._told):
            self._waiting.tell(self._call, waits, sorted(peers | self._waiting.awaiting()))
            self._tell_s, self._told = now_s + _tell_again_s(self._limit_s), peers
            self._chain = self._waiting.chain(peers)
        self._waiting.check(self._call, awaited)
        if self._told and (chain := self._waiting.chain(peers)) != self._chain:  # news for those at its other end
            self._waiting.tell(self._call, waits, sorted(self._waiting.awaiting()))
            self._chain = chain
        self._waiting.patience(now_s - self._began_s, self._limit_s, self._call, awaited())


def _tell_again_s(limit_s: float) -> float:
    return min(TELL_AGAIN_S, limit_s / 4)


def refusal_note(number: int, error: BaseException) -> bytes:
    """The word that a rank does not make the call with this number."""
    return json.dumps({"number": number, "text": str(error)[:TEXT_CHARACTERS]}).encode()


def failure_note(rank: int, error: BaseException) -> bytes:
    """The word that `rank` has failed; a rank that fails because another did passes that one's word on."""
    report = getattr(error, "report", None) or {
        "rank": rank,
        "kind": type(error).__name__,
        "text": str(error)[:TEXT_CHARACTERS],
    }
    return json.dumps(report).encode()


def rank_failed(rank: int, gone: dict[int, str], remedy: str) -> RankFailedError:
    """The error that `rank` raises since others are gone, each with how that is known, and what to do."""
    losses = ", ".join(f"rank {peer} {how}" for peer, how in sorted(gone.items()))
    error = RankFailedError(f"rank {rank}: {losses}; {remedy}")
    first = min(gone)
    error.report = {"rank": first, "kind": "RankFailedError", "text": f"rank {first} {gone[first]}"}  # type: ignore[attr-defined]
    return error


def _reported(rank: int, report: dict[str, Any]) -> TopocommError:
    origin, text = report["rank"], report["text"]
    how = f"failed: {report['kind']}: {text}".removesuffix(": ")
    if report["kind"] == "SystemExit":
        how = f"exited: sys.exit({text})"
    cause = text if text.startswith(f"rank {origin}") else f"rank {origin} {how}"
    error = FAILURES.get(report["kind"], RankFailedError)(f"rank {rank}: stopped, since {cause}")
    error.report = report  # type: ignore[attr-defined]
    return error


def _peers(awaited: AwaitedMessages) -> set[int]:
    return {m.peer for m in (*awaited.receives, *awaited.sends)}
