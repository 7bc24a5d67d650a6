"""Peak memory of a call, as Linux counts it: resident pages of this process, whoever allocated them."""

from __future__ import annotations

import ctypes
import gc
import re
from collections.abc import Callable
from pathlib import Path

RESET_PEAK = "5"
"""Value for /proc/self/clear_refs that resets the peak; see proc(5)."""


def growth_bytes(call: Callable[[], object]) -> int:
    """Return the peak of resident memory during a call, above its start; the returned value counts."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # freed memory that glibc keeps would be used again, and not be counted
    Path("/proc/self/clear_refs").write_text(RESET_PEAK)
    before = _status_bytes("VmRSS")
    kept = call()
    peak = _status_bytes("VmHWM")
    del kept
    return max(peak - before, 0)


def _status_bytes(name: str) -> int:
    status = Path("/proc/self/status").read_text()
    found = re.search(rf"^{name}:\s+(\d+) kB$", status, re.MULTILINE)
    assert found, f"/proc/self/status has no {name}"
    return int(found[1]) * 1024
