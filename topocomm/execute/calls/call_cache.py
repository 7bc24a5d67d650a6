"""The calls that a communicator keeps: one for each kind of call and signature of its values, up to a limit.

All ranks keep the same calls. They make the same calls in the same order, a new one is agreed upon before it is kept,
and the oldest ones go by their number and by bytes that are the same on all ranks: what is kept does not depend on
when a rank does something, nor on what its garbage collector does. A call goes after the one that takes its place was
agreed upon and set up. So no rank is in it any more: it blocks, only this cache knows it, and every rank has begun a
later call. Its shared memory is not given to another call (`transports/shared_memory.py`).

Calls go in the order in which they came, which is that of the shared segments they lie in, and costs a call that is
found nothing. One that is in use goes too, now and then, and is made again; its plan is kept longer than it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from weakref import WeakSet

from topocomm.errors import OperatorError
from topocomm.execute.calls.binding import agree, prepare
from topocomm.execute.calls.call_plans import Request
from topocomm.execute.calls.prepared_call import PreparedCall
from topocomm.execute.calls.shift import Shift
from topocomm.execute.calls.structure import signature
from topocomm.execute.calls.sum_call import SumCall
from topocomm.execute.host.call_engine import NOTHING
from topocomm.execute.host.row_flags import RowFlags
from topocomm.execute.session import TAGS_PER_CALL, Session
from topocomm.execute.transports.shared_memory import SharedArena
from topocomm.execute.transports.transport import AGREEMENT_TAG, FIRST_CALL_TAG
from topocomm.operators.operator import Operator

MOST_CALLS = 512
"""Calls that are kept: more than the shapes that models and solvers use in turn; about 70 KB each, 36 MB."""
MOST_BYTES = 128 << 20
"""Of the shared segments and message buffers that they lie in: at most 16 segments, each with a file descriptor."""


class Kind:
    """The kept calls of one kind, that is of one collective, operator, root, rows and order.

    Attributes:
        fast_path: The shortest way through the call last made, as `fast_path.py`; None where it has none.
        calls: By signature of the values.
    """

    __slots__ = ("calls", "fast_path")

    def __init__(self) -> None:
        self.fast_path: Callable[[Any, Any], Any] | None = None
        self.calls: dict[Hashable, PreparedCall] = {}


class _Kept(NamedTuple):
    which: Hashable
    key: Hashable
    memory: tuple[int, int]


class CallCache:
    """Makes calls of a communicator, with those prepared before.

    Attributes:
        kinds: Kept calls by what tells kinds apart; see `run`.
        prepared: All calls that are still there, kept or held by the caller.
        bytes: Of the memory that kept calls lie in.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self.kinds: dict[Hashable, Kind] = {}
        self.prepared: WeakSet[PreparedCall | Shift | SumCall | RowFlags] = WeakSet()
        self.bytes = 0
        self._kept: deque[_Kept] = deque()
        """Kept calls, the oldest first."""
        self._users: Counter[tuple[int, int]] = Counter()
        """Number of kept calls by piece of memory."""

    def __len__(self) -> int:
        return len(self._kept)

    def run(self, which: Hashable, x: Any, out: Any) -> Any:
        """Make a call and return what the caller gets, in `out` or, where that is None, in new memory.

        `which` is the operator of an allreduce; else the arguments of `Request` without the value, as a tuple.
        """
        try:
            kind = self.kinds.get(which)
        except TypeError:  # what has no hash is no operator: `prepare` says so, and tells all ranks
            kind = None
        if kind is not None and kind.fast_path is not None and x is not None:  # None says of no kind of value
            result = kind.fast_path(x, out)
            if result is not None:
                return None if result is NOTHING else result
        return self.find(which, x).repeat(x, out)

    def find(self, which: Any, x: Any) -> PreparedCall:
        """Return the call for values like x, prepared now if there is none; collective."""
        key = _signature(which, x)
        kind = None if key is None else self.kinds.get(which)
        call = None if kind is None else kind.calls.get(key)
        if call is None:
            collective, *rest = which if isinstance(which, tuple) else ("allreduce", which)
            call = self.prepare(Request(collective, x, *rest), self._session.arenas[1])
            if key is not None:
                self._keep(_Kept(which, key, call.memory), call)
        elif self._session.settings.check == "always":
            self._session.recorder.begin(AGREEMENT_TAG)
            what = self._session.describe_tag(call.tag)
            number = (call.tag - FIRST_CALL_TAG) // TAGS_PER_CALL
            claim = {**self._session.waiting.claims[call.tag], "call": f"prepared call {number} ({what})"}
            agree(self._session, claim, what)
        if key is not None and self._session.settings.check != "always":
            self.kinds[which].fast_path = call.fast_path
        return call

    def prepare(self, request: Request, arena: SharedArena) -> PreparedCall:
        """A new call; raises as `Communicator.prepare`."""
        self._session.enter()
        try:
            call = prepare(self._session, request, arena)
        finally:
            self._session.leave()
        self.prepared.add(call)
        return call

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Prepare all calls anew inside, and forget them after; collective, and so must be what comes last inside."""
        before = self.kinds, self._kept, self._users, self.bytes
        self.kinds, self._kept, self._users, self.bytes = {}, deque(), Counter(), 0
        try:
            yield
        finally:
            while self._kept:
                self._let_go(self._kept.popleft())
            self.kinds, self._kept, self._users, self.bytes = before

    def close(self) -> None:
        """Free all calls, also those that the caller holds."""
        for call in self.prepared:
            call.free()
        self.kinds.clear()
        self._kept.clear()
        self._users.clear()
        self.bytes = 0

    def _keep(self, kept: _Kept, call: PreparedCall) -> None:
        self.kinds.setdefault(kept.which, Kind()).calls[kept.key] = call
        self._kept.append(kept)
        self._users[kept.memory] += 1
        self.bytes += kept.memory[1] if self._users[kept.memory] == 1 else 0
        while len(self._kept) > 1 and (len(self._kept) > MOST_CALLS or self.bytes > MOST_BYTES):
            self._let_go(self._kept.popleft())

    def _let_go(self, kept: _Kept) -> None:
        kind = self.kinds[kept.which]
        call = kind.calls.pop(kept.key)
        if kind.fast_path is call.fast_path:
            kind.fast_path = None
        if not kind.calls:
            del self.kinds[kept.which]
        self._users[kept.memory] -= 1
        if not self._users[kept.memory]:
            del self._users[kept.memory]
            self.bytes -= kept.memory[1]
        self._session.forget_tag(call.tag)
        call.let_go()


def _signature(which: Any, x: Any) -> Hashable:
    """Return the key of calls of one kind; None for a value that no call can be prepared for."""
    operator = which[1] if isinstance(which, tuple) else which
    if operator is not None and not isinstance(operator, Operator):
        return None  # `prepare` says what is wrong with it, and tells all ranks
    try:
        hash(which)
        return signature(x)
    except (OperatorError, AttributeError, TypeError):
        return None
