"""Alltoalls with rows: the expected call at once, beside flags that say whether it counts.

A rank whose rows are not the expected ones takes part in the expected call with zeros. When it is through, flags have
told all ranks whether its result counts; if not, they exchange their rows and make the call of these.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from topocomm.errors import OperatorError
from topocomm.execute.calls.all_gather import described
from topocomm.execute.calls.call_cache import MOST_CALLS, CallCache
from topocomm.execute.calls.ranges import gather_pairs, pairs_of, rows_of
from topocomm.execute.calls.row_counts import RowCounts
from topocomm.execute.calls.structure import rebuilder
from topocomm.execute.device import device_library as devices
from topocomm.execute.host.row_flags import RowFlags, row_flags
from topocomm.execute.liveness.waiting import UnderWay
from topocomm.execute.session import Session
from topocomm.execute.transports.transport import GATHER_TAG
from topocomm.operators.tensors import is_tensor


@dataclass
class _Expected:
    """What all ranks expect of the next alltoall of values that differ in their rows only.

    Attributes:
        own: Rows that this rank sends to each.
        which: The call of these rows, as `CallCache.run` takes it.
        trusted: Whether ranks make it before they exchange rows: not after a change, until rows stay the same.
        absent: Makes this rank's value where it has other rows.
    """

    own: tuple[int, ...]
    which: Hashable
    trusted: bool
    absent: Callable[[], Any]
    result: tuple[int, ...] | None = None
    """Shape of its result, if it is one array and was made before."""

    def takes(self, x: Any, out: Any) -> bool:
        """Whether the result can surely be made in `out`, though it may not count."""
        return (
            type(x) is type(out) is np.ndarray
            and out.shape == self.result
            and out.dtype == x.dtype
            and out.flags.carray
            and not np.may_share_memory(x, out)
        )


_NOTHING = _Expected((), None, False, lambda: None)


class AllToAll:
    """The alltoalls of a communicator, and what it knows of their rows."""

    def __init__(self, calls: CallCache, session: Session, rows: RowCounts) -> None:
        self._calls, self._session, self._rows = calls, session, rows
        self._flags: RowFlags | None = None
        self._asked = False
        """Whether it is known if there are flags."""
        self._expected: dict[Hashable, _Expected] = {}
        """By kind of value, the longest unused first; ranks that make the same calls expect the same."""
        self._last: _Expected | None = None
        """What was expected in the last call: a rank whose value has no rows takes part in that one."""
        self._again: tuple[Any, tuple[int, ...], Any, _Expected] = (None, (), None, _NOTHING)
        """Rows or destination, shape and dtype of the last array that had the expected rows."""

    def send(self, x: Any, dest: int, out: Any) -> Any:
        """Return the rows that ranks send to this one; collective. As `Communicator.sendrecv`."""
        if self._is_again(x, dest):
            same, result = self._run_expected(self._again[3], x, out)
            if same:
                return result
        size = self._session.size
        rows = [rows_of(x) if rank == dest else 0 for rank in range(size)] if dest in range(size) else ()
        return self.run(x, rows, out, dest)

    def run(self, x: Any, rows: Sequence[int] | None, out: Any, key: Any = None) -> Any:
        """Return the rows that all ranks have for this one; collective. As `Communicator.alltoall`.

        `key` is what stands for `rows` where the caller has another form of them.
        """
        if rows is None:
            return self._calls.run(("alltoall", None, 0, None), x, out)
        if key is None:
            key = tuple(rows) if isinstance(rows, (list, tuple)) else None
            if self._is_again(x, key):
                same, result = self._run_expected(self._again[3], x, out)
                if same:
                    return result
        parts, kind = described(x)
        if any(map(devices.device_of, parts.values())) or not self._have_flags():
            return self._calls.run(("alltoall", None, 0, self._rows.of_alltoall(x, rows)), x, out)
        own = pairs_of(x, rows, self._session.size)
        expected = self._last = self._last if kind is None else self._expected.get(kind)
        if expected is not None and expected.trusted:
            fits = own == expected.own
            if fits and type(x) is np.ndarray:
                self._again = key, x.shape, x.dtype, expected
            same, result = self._run_expected(expected, x if fits else None, out)
            if same:
                return result
        every = gather_pairs(self._calls, self._session, own)
        if min(every) < 0 or kind is None:  # refused on all ranks: nothing is expected after it
            self._expected.clear()
            self._last, self._again = None, (None, (), None, _NOTHING)
        else:
            self._expect(kind, parts, own, every, x)
        return self._calls.run(("alltoall", None, 0, every), x, out)

    def _have_flags(self) -> bool:
        """Whether there are flags, which are made at the first use; collective then."""
        if not self._asked:
            self._flags, self._asked = row_flags(self._session), True
            if self._flags is not None:
                self._calls.prepared.add(self._flags)
        return self._flags is not None

    def _is_again(self, x: Any, key: Any) -> bool:
        """Whether this is the last array's form, rows and expectation, which then need not be looked up."""
        last, shape, dtype, expected = self._again
        if key is None or key != last or type(x) is not np.ndarray or x.shape != shape or x.dtype is not dtype:
            return False
        self._last = expected
        return expected.trusted

    def _run_expected(self, expected: _Expected, x: Any, out: Any) -> tuple[bool, Any]:
        """Return whether the rows of all ranks are the expected ones, and then the result; x is None here if not."""
        flags, call, target, given = self._flags, None, None, None
        assert flags is not None, "nothing is expected without them"
        if x is not None and expected.takes(x, out):
            given = out  # where rows have changed it is written once more
        elif x is not None and out is not None:
            call = self._calls.find(expected.which, x)  # once, as `run` does: it may agree with the other ranks
            try:
                target = call.fit_result(out)
            except OperatorError:  # its rows may be those of a change elsewhere
                x = None
        flags.tell(x is None)
        value = expected.absent() if x is None else x
        result = self._calls.run(expected.which, value, given) if call is None else call.repeat(value, None)
        changed = flags.heard()
        if changed is None:
            with self._session.closing_on_error():
                what = "the flags of an alltoall's rows"
                number = self._session.recorder.calls
                self._session.waiting.for_call(UnderWay(flags, GATHER_TAG, number, what))
            changed = flags.heard()
        expected.trusted = not changed
        if type(result) is np.ndarray:
            expected.result = result.shape
        if changed or target is None:
            return not changed, result
        for name, array in target.items():  # only now is it known that the result counts
            array[...] = described(result)[0][name]
        return True, out

    def _expect(self, kind: Hashable, parts: Any, own: tuple[int, ...], every: tuple[int, ...], x: Any) -> None:
        """Note what is expected from now on, as ranks have exchanged their rows."""
        self._again = (None, (), None, _NOTHING)
        which = ("alltoall", None, 0, every)
        known = self._expected.pop(kind, None)
        empty = {name: _zeros(part, (0,)) for name, part in parts.items()}
        shapes, rebuild = {name: part.shape for name, part in parts.items()}, rebuilder(x)

        def absent() -> Any:
            return rebuild({name: _zeros(empty[name], shape) for name, shape in shapes.items()})

        trusted = known is None or known.which == which
        self._last = self._expected[kind] = _Expected(own, which, trusted, absent)
        if len(self._expected) > MOST_CALLS:
            del self._expected[next(iter(self._expected))]


def _zeros(like: Any, shape: tuple[int, ...]) -> Any:
    return like.new_zeros(shape) if is_tensor(like) else np.zeros(shape, like.dtype)
