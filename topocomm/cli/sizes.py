"""Byte counts as people write them: 16512, 64KiB, 128MiB."""

from __future__ import annotations

import re

from topocomm.errors import PlanError

UNITS = {"": 1, "B": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "KB": 10**3, "MB": 10**6, "GB": 10**9}


def parse_bytes(text: str) -> int:
    """The number of bytes that `text` says; binary units are KiB, MiB, GiB, decimal ones KB, MB, GB.

    Raises:
        PlanError: It is no such text.
    """
    match = re.fullmatch(r"\s*([0-9]{1,18})\s*([A-Za-z]*)\s*", text)
    unit = match.group(2).upper() if match else None
    if match is None or unit not in UNITS:
        raise PlanError(f"--bytes {text!r}: expected a whole number of bytes such as 16512, 64KiB or 8MiB")
    return int(match.group(1)) * UNITS[unit]
