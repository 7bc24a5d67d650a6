"""Session: what the ranks of a communicator share: transport, machine, places, recorder, waiting, failure, settings.

Everything below the facade takes a Session. It knows no call and no engine: a call begins with `enter` and a sequence
number of the recorder, ends with `leave`, and reports an error by `fail_with`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from topocomm.errors import OperatorError, TopocommError
from topocomm.execute.host.result_memory import ResultMemory
from topocomm.execute.liveness.exception_hook import show_on
from topocomm.execute.liveness.failure import gone_with, write_record
from topocomm.execute.liveness.log import say, show
from topocomm.execute.liveness.recorder import KEPT, Recorder
from topocomm.execute.liveness.shutdown import note_failure, watch_shutdown
from topocomm.execute.liveness.waiting import Waiting, failure_note, rank_failed, refusal_note
from topocomm.execute.setup.handshake import meet
from topocomm.execute.setup.settings import Settings
from topocomm.execute.transports.shared_memory import SharedArena
from topocomm.execute.transports.transport import (
    AGREEMENT_TAG,
    CLOSING_TAG,
    FAILURE_TAG,
    FIRST_CALL_TAG,
    GATHER_TAG,
    REFUSED_TAG,
    Transport,
)
from topocomm.planning.plan import Plan
from topocomm.topology.model import Topology

if TYPE_CHECKING:
    from topocomm.execute.device.device_path import DevicePath

BUSY = "another call is running; one at a time"
"""Refusal text while a call runs."""
FindPlaces = Callable[[Transport], tuple[Topology, tuple[str, ...]]]
"""Function that discovers the machine of a transport's ranks, and the endpoint of each; collective."""
TAGS_PER_CALL = 2
"""Tags of a prepared call: one for its messages, one for its credits."""
NOTES = {AGREEMENT_TAG: "the first use of a call", GATHER_TAG: "an exchange of records", CLOSING_TAG: "close"}


class Session:
    """One rank's part of a group of ranks; made together by all of them.

    Attributes:
        places: Endpoint of every rank, by rank.
        find_places: Discovers machine and places again after ranks are lost; None: they stay as given.
        plans: Plans that calls were made from, by what tells calls apart; the longest unused first.
        arenas: Shared memory for calls that the caller holds, and for those that the communicator keeps: what lives for
            different times lies in different segments.
        refusal: Why no call can begin now, or None.
        gone: Ranks known to be gone.
        on_behalf_of: What an exchange before a call claims in place of itself, by part: what the caller asked for.
        same_python: Whether all ranks run one version of Python, so that bytecode can be compared.
        device_path: How values on devices travel; None before the first call with such values.

    Raises:
        MismatchError: Ranks have different settings or versions.
        DeadlineError, RankFailedError: Not all ranks come, or one fails.
    """

    def __init__(
        self,
        transport: Transport,
        topology: Topology,
        places: tuple[str, ...],
        find_places: FindPlaces | None = None,
        settings: Settings | None = None,
    ) -> None:
        self.transport, self.topology, self.places = transport, topology, places
        self.rank, self.size = transport.rank, transport.size
        self.find_places = find_places
        self.settings = settings or Settings.from_environment()
        self.recorder = Recorder()
        self.results = ResultMemory()
        limit_s, limit, remedy = self.settings.timeout_s, self.settings.limit, self.settings.remedy
        self.waiting = Waiting(transport, limit_s, self.describe_tag, self.recorder, limit=limit, remedy=remedy)
        self.recorder.sweep = self.waiting.sweep
        self.plans: dict[Hashable, Plan] = {}
        self.arenas = SharedArena(), SharedArena()
        self.refusal: str | None = None
        self.gone: set[int] = set()
        self.on_behalf_of: Mapping[str, str] = {}
        self.device_path: DevicePath | None = None
        self.failed = False
        self._names: dict[int, str] = {}
        self._forgotten: deque[int] = deque()
        self._tag = FIRST_CALL_TAG
        self._subsets = 0
        self.same_python = meet(self.waiting, [topology.by_id[place].host for place in places], self.settings.check)
        watch_shutdown(self)
        show(self.settings.log)
        say(self.rank, f"{self.size} ranks by {transport.name} on {topology.name}: {', '.join(places)}")

    @property
    def open(self) -> bool:
        """Whether it is neither closed nor failed."""
        return self.refusal is None or self.refusal is BUSY

    def enter(self) -> None:
        """Begin a call.

        Raises:
            TopocommError: The communicator is closed, or another call is running.
        """
        if self.refusal is not None:
            raise TopocommError(f"rank {self.rank}: this communicator takes no call now: {self.refusal}")
        self.refusal = BUSY

    def leave(self) -> None:
        """End a call."""
        if self.refusal is BUSY:
            self.refusal = None

    @contextmanager
    def call(self, tag: int) -> Iterator[int]:
        """Run what is inside as a call with this tag, of which it has the number; close where it raises."""
        self.enter()
        try:
            with self.closing_on_error():
                yield self.recorder.begin(tag)
        finally:
            self.leave()

    def closing_on_error(self) -> ClosingOnError:
        """Return a context that calls `fail_with` where what is inside raises."""
        return ClosingOnError(self)

    def fail_with(self, error: BaseException) -> None:
        """`fail`; raises RankFailedError instead if the transport's error means that ranks are gone."""
        if not isinstance(error, TopocommError):
            gone = self.transport.blamed(error)
            if gone:
                failure = rank_failed(self.rank, gone, self.settings.remedy)
                self.fail(failure)
                raise failure from error
        self.fail(error)

    def fail(self, error: BaseException, *, tell: bool = True) -> None:
        """Close after an error, write the record, and tell the other ranks, so that nobody waits for this one.

        Without `tell` all ranks raise it alike, and know.
        """
        if self.failed:
            return
        self.failed = True
        for call in self.waiting.under_way:
            call.withdraw()
        self.results.close()
        self.gone |= gone_with(self.transport, error)
        left = {*range(self.size)} - self.gone
        origin = (getattr(error, "report", None) or {"rank": self.rank})["rank"] if tell else min(left)
        show_on(error, self.transport, origin if origin in left else min(left))
        note_failure(self.transport, gone=bool(self.gone))
        self.refusal = f"it was closed by {type(error).__name__}: {error}"
        write_record(self.waiting, self.settings.record_dir, error)
        try:
            if tell:
                self._tell(FAILURE_TAG, failure_note(self.rank, error))
        finally:
            if self.device_path is not None:  # last, since it may take long: what a device waits for does not come
                self.device_path.abort()

    def synchronize(self) -> None:
        """As `Communicator.synchronize`."""
        self.enter()
        try:
            with self.closing_on_error():
                if self.device_path is not None and self.device_path.in_flight is not None:
                    self.device_path.in_flight.wait()
        finally:
            self.leave()

    def refuse(self, tag: int, error: OperatorError) -> None:
        """Tell the other ranks that this one does not make the call with a tag, which counts as begun all the same."""
        if self.refusal is not None:
            return
        show_on(error, self.transport, self.rank)
        self._tell(REFUSED_TAG, refusal_note(self.recorder.begin(tag), error))

    def next_tag(self, name: str = "", claim: Mapping[str, str] | None = None) -> int:
        """Return the tag of the next call, the same on all ranks, since they prepare in the same order.

        `name` is the call in words, `claim` what was agreed upon of it.
        """
        tag = self._tag
        if tag + TAGS_PER_CALL > self.transport.most_tag:
            raise TopocommError(f"rank {self.rank}: more than {tag // TAGS_PER_CALL} prepared calls; reuse them")
        self._tag += TAGS_PER_CALL
        if name:
            self._names[tag] = name
        if claim is not None:
            self.waiting.claims[tag] = claim
        return tag

    @property
    def tags_taken(self) -> int:
        """Tags used so far, plus a constant; the same on all ranks."""
        return self._tag

    def describe_tag(self, tag: int) -> str:
        """Describe the call with a tag."""
        return NOTES.get(tag) or self._names.get(tag, "a call not known here")

    def forget_tag(self, tag: int) -> None:
        """Forget the words for a call that is gone, when the record of calls does not know it any more."""
        self._forgotten.append(tag)
        if len(self._forgotten) > KEPT:
            forgotten = self._forgotten.popleft()
            self._names.pop(forgotten, None)
            self.waiting.in_step.discard(forgotten)
            self.waiting.claims.pop(forgotten, None)

    def next_subset(self) -> int:
        """Return the number of the next group of these ranks, the same on all of them."""
        self._subsets += 1
        return self._subsets - 1

    def _tell(self, tag: int, note: bytes) -> None:
        for peer in set(range(self.size)) - self.gone - {self.rank}:
            self.transport.post(peer, tag, note)


class ClosingOnError:
    """See `Session.closing_on_error`; a class, since a generator would take as long as a short message."""

    __slots__ = ("_session",)

    def __init__(self, session: Session) -> None:
        self._session = session

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, kind: object, error: BaseException | None, at: object) -> None:
        if error is not None:
            self._session.fail_with(error)
