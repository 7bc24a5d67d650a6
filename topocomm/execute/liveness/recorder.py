"""The last calls of a rank, kept in a ring and written to a file when something fails."""

from __future__ import annotations

import json
import os
import tempfile
import time
from array import array
from collections import deque
from collections.abc import Callable, Collection
from pathlib import Path

from topocomm.execute.transports.transport import AGREEMENT_TAG, GATHER_TAG

KEPT = 256
MASK = KEPT - 1
SWEEP_MASK = 1023
"""Calls between two receptions of unsolicited notes."""
KEPT_S = 86400.0
"""Seconds that the default folder keeps a record after its process is gone."""
TOLD = 16
"""Number of calls in a rank's reports to others."""


class Recorder:
    """Tags and times of the last `KEPT` calls that a rank has begun.

    Attributes:
        sweep: Called now and then.
        record: The number of calls, see `calls`; then, by number modulo `KEPT`, their tag, 0 where there was none, and
            `CLOCK_MONOTONIC` in ns at their beginning. Compiled code writes to it where it lies.
    """

    def __init__(self, sweep: Callable[[], None] = lambda: None) -> None:
        self.sweep = sweep
        self.record = array("q", [0] * (1 + 2 * KEPT))
        self._exchanges = 0
        self._last_exchanges: deque[int] = deque(maxlen=KEPT)

    @property
    def calls(self) -> int:
        """Number of calls begun, agreements and exchanges of records included; the same on all ranks."""
        return self.record[0]

    def users_number(self, number: int) -> int:
        """Return which of the program's calls the call with this number is, counted from 1.

        An agreement or an exchange of records counts as the call that comes after it.
        """
        return number - self._exchanges + sum(exchange >= number for exchange in self._last_exchanges)

    def begin(self, tag: int) -> int:
        """Record that a call begins; return its number."""
        number = self.record[0] = self.record[0] + 1
        if not number & SWEEP_MASK:
            self.sweep()
        self.record[_place(number)], self.record[_place(number) + 1] = tag, _now_ns()
        if tag in (AGREEMENT_TAG, GATHER_TAG):
            self._exchanges += 1
            self._last_exchanges.append(number)
        return number

    def tag(self, number: int) -> int:
        """Return the tag of the call with this number; 0 if it has not begun or is forgotten."""
        return self.record[_place(number)] if self.calls - KEPT < number <= self.calls else 0

    def age_s(self, number: int) -> float:
        """Return how long ago a call of which the tag is known began."""
        return (_now_ns() - self.record[_place(number) + 1]) / 1e9

    def latest(self) -> dict[int, int]:
        """Return the tags of the last calls by number."""
        return {n: self.tag(n) for n in range(max(1, self.calls - TOLD + 1), self.calls + 1)}

    def write(
        self, directory: Path, header: dict[str, object], describe: Callable[[int], str], open_calls: Collection[int]
    ) -> Path | None:
        """Write the record as JSON lines, after a header; return its path, or None if that is not possible.

        `describe` says what call a tag is; `open_calls` are the numbers of the calls that are not through.
        """
        now_ns = _now_ns()
        lines = [json.dumps({"schema": "topocomm.record/1", **header})]
        for number in range(max(1, self.calls - KEPT + 1), self.calls + 1):
            entry = {
                "number": self.users_number(number),
                "call": describe(self.tag(number)),
                "state": "open" if number in open_calls else "through",
                "began_s_before_failure": round((now_ns - self.record[_place(number) + 1]) / 1e9, 6),
            }
            lines.append(json.dumps(entry))
        path = directory / f"rank{header.get('rank', 0)}-pid{os.getpid()}.jsonl"
        try:
            directory.mkdir(parents=True, exist_ok=True)
            path.write_text("\n".join(lines) + "\n")
            if directory == default_directory():  # another one is the user's, and may be of several hosts
                _remove_old(directory)
        except OSError:  # a record is no reason to fail otherwise than the job did
            return None
        return path


def _place(number: int) -> int:
    return 1 + 2 * (number & MASK)


def default_directory() -> Path:
    """Return the default folder of records, without TOPOCOMM_RECORD_DIR."""
    return Path(tempfile.gettempdir()) / f"topocomm-records-{os.getuid()}"


def _remove_old(directory: Path) -> None:
    """Remove the records that processes which are gone wrote more than `KEPT_S` ago."""
    for path in directory.glob("rank*-pid*.jsonl"):
        pid = path.stem.partition("-pid")[2]
        if pid.isdecimal() and time.time() - path.stat().st_mtime > KEPT_S and not _is_alive(int(pid)):
            path.unlink(missing_ok=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # of another user
        return True
    return True


def _now_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)
