"""Calls of values that differ in their rows: the expected one at once, beside flags that say whether it counts.

A rank whose rows are not the expected ones takes part in the expected call with zeros. When it is through, flags have
told all ranks whether its result counts; if not, they exchange their rows and make the call of these.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from topocomm.errors import OperatorError
from topocomm.execute.calls.call_cache import MOST_CALLS, CallCache, Kind
from topocomm.execute.calls.structure import parts_of, rebuilder
from topocomm.execute.device import device_library as devices
from topocomm.execute.host.call_engine import Unsettled
from topocomm.execute.host.row_flags import RowFlags, row_flags
from topocomm.execute.liveness.waiting import UnderWay
from topocomm.execute.session import Session
from topocomm.execute.transports.transport import GATHER_TAG
from topocomm.operators.tensors import is_tensor


@dataclass
class _Expected:
    """What all ranks expect of the next call of values that differ in their rows only.

    Attributes:
        own: What this rank tells of its rows.
        which: The call of all ranks' rows, as `CallCache.run` takes it.
        trusted: Whether ranks make it before they exchange rows: not after a change, until rows stay the same.
        absent: Makes this rank's value where it has other rows.
        result: Shape of its result, if it is one array and was made before.
    """

    own: tuple[int, ...]
    which: Hashable
    trusted: bool
    absent: Callable[[], Any]
    result: tuple[int, ...] | None = None

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
_NO_PATH: tuple[Hashable, Callable[..., Any] | None, Kind, _Expected] = (None, None, Kind(), _NOTHING)


class ExpectedRows:
    """The calls of one collective on a communicator, and what it knows of their rows.

    Args:
        collective: Its name.
        messages: Whether flags may be messages, where they do not lie in shared memory.
    """

    def __init__(self, calls: CallCache, session: Session, collective: str, *, messages: bool) -> None:
        self._calls, self._session, self._collective, self._messages = calls, session, collective, messages
        self._flags: RowFlags | None = None
        self._memory: memoryview | None = None
        """Of the flags, where calls in C set them."""
        self._asked = False
        """Whether it is known if there are flags."""
        self.known: dict[Hashable, _Expected] = {}
        """By kind of value, the longest unused first; ranks that make the same calls expect the same."""
        self._last: _Expected | None = None
        """What was expected in the last call: a rank whose value has no rows takes part in that one."""
        self._again = _NO_PATH
        """What stands for the rows of the last value that had the expected ones, and the fast path of its call."""

    def serve(self, parts: Mapping[str, Any]) -> bool:
        """Whether values with these arrays are called here; collective at the first use, when flags are made."""
        if any(map(devices.device_of, parts.values())):
            return False
        if not self._asked:
            self._flags, self._asked = row_flags(self._session, messages=self._messages), True
            if self._flags is not None:
                self._calls.prepared.add(self._flags)
                self._memory = self._flags.memory
        return self._flags is not None

    def repeat(self, x: Any, key: Hashable, out: Any) -> tuple[bool, Any]:
        """Make the call of a value like the last one; return whether it was made and counts, and its result.

        `key` stands for the rows, as in `run`.
        """
        last, path, kept, expected = self._again
        if path is None or key != last or not expected.trusted or kept.fast_path is not path:
            return False, None
        result = path(x, out, self._memory)
        if result is None:  # another value: nothing was done
            return False, None
        self._last = expected
        if type(result) is Unsettled:
            return self._counts(expected), result.result
        return True, result

    def run(
        self,
        x: Any,
        own: tuple[int, ...],
        exchange: Callable[[], tuple[int, ...]],
        out: Any,
        key: Hashable,
    ) -> Any:
        """Return the result of the call; collective.

        Args:
            x: The value, which `serve` takes.
            own: What this rank tells of its rows.
            exchange: Returns what all ranks tell, negative of a value without rows; collective.
            out: Where to write the result.
            key: What stands for `own` beside the shape of x; None: nothing does.
        """
        parts, kind = described(x)
        expected = self._last = self._last if kind is None else self.known.get(kind)
        if expected is not None and expected.trusted:
            fits = own == expected.own
            same, result = self._run_expected(expected, x if fits else None, out)
            if same:
                kept = self._calls.kinds.get(expected.which)
                if fits and kept is not None and self._memory is not None and key is not None:
                    self._again = key, kept.fast_path, kept, expected
                return result
        every = exchange()
        if min(every) < 0 or kind is None:  # refused on all ranks: nothing is expected after it
            self.known.clear()
            self._last, self._again = None, _NO_PATH
        else:
            self._expect(kind, parts, own, every, x)
        return self._calls.run((self._collective, None, 0, every), x, out)

    def _run_expected(self, expected: _Expected, x: Any, out: Any) -> tuple[bool, Any]:
        """Return whether the rows of all ranks are the expected ones, and then the result; x is None here if not."""
        flags = self._flags
        assert flags is not None, "nothing is expected without them"
        call, target, given = None, None, None
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
        if type(result) is np.ndarray:
            expected.result = result.shape
        counts = self._counts(expected)
        if not counts or target is None:
            return counts, result
        for name, array in target.items():  # only now is it known that the result counts
            array[...] = described(result)[0][name]
        return True, out

    def _counts(self, expected: _Expected) -> bool:
        """Whether the call that was made counts; waits for the flags of all ranks."""
        flags = self._flags
        assert flags is not None, "told before"
        changed = flags.heard()
        if changed is None:
            with self._session.closing_on_error():
                what = f"the flags of an {self._collective}'s rows"
                number = self._session.recorder.calls
                self._session.waiting.for_call(UnderWay(flags, GATHER_TAG, number, what))
            changed = flags.heard()
        expected.trusted = not changed
        return not changed

    def _expect(self, kind: Hashable, parts: Any, own: tuple[int, ...], every: tuple[int, ...], x: Any) -> None:
        """Note what is expected from now on, as ranks have exchanged their rows."""
        self._again = _NO_PATH
        which = (self._collective, None, 0, every)
        known = self.known.pop(kind, None)
        empty = {name: _zeros(part, (0,)) for name, part in parts.items()}
        shapes, rebuild = {name: part.shape for name, part in parts.items()}, rebuilder(x)

        def absent() -> Any:
            return rebuild({name: _zeros(empty[name], shape) for name, shape in shapes.items()})

        trusted = known is None or known.which == which
        self._last = self.known[kind] = _Expected(own, which, trusted, absent)
        if len(self.known) > MOST_CALLS:
            del self.known[next(iter(self.known))]


def described(x: Any) -> tuple[Mapping[str, Any], Hashable]:
    """Return the arrays of a value, and a key that is equal for values with other rows; None where it has none."""
    if type(x) is np.ndarray and x.ndim:
        return {"value": x}, (x.dtype, x.shape[1:])
    try:
        parts = parts_of(x)
        rows = [len(part) for part in parts.values()]  # none of a scalar
        kinds = [(name, type(p), p.dtype, p.shape[1:], devices.device_of(p)) for name, p in parts.items()]
    except (OperatorError, AttributeError, TypeError):
        return {}, None
    return parts, (type(x), *kinds) if rows else None


def _zeros(like: Any, shape: tuple[int, ...]) -> Any:
    return like.new_zeros(shape) if is_tensor(like) else np.zeros(shape, like.dtype)
