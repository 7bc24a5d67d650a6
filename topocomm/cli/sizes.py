"""Byte counts as people write them: 16512, 64KiB, 128MiB."""

from __future__ import annotations

import re

from topocomm.errors import PlanError

UNITS = {"": 1, "B": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "KB": 10**3, "MB": 10**6, "GB": 10**9}


def parse_bytes(text: str, option: str = "--bytes") -> int:
    """The number of bytes that `text`, the value of `option`, says; KiB, MiB, GiB are binary, KB, MB, GB decimal.

    Raises:
        PlanError: It is no such text.
    """
    match = re.fullmatch(r"\s*([0-9]{1,18})\s*([A-Za-z]*)\s*", text)
    unit = match.group(2).upper() if match else None
    if match is None or unit not in UNITS:
        raise PlanError(f"{option} {text!r}: expected a whole number of bytes such as 16512, 64KiB or 8MiB")
    return int(match.group(1)) * UNITS[unit]


def parse_sizes(text: str, row_bytes: int) -> tuple[int, ...]:
    """The sizes that `A:B:FACTOR`, or one size, says, in whole rows.

    A range is cut to whole rows, at least one, as nccl-tests cuts it to whole numbers; one size must be whole.

    Args:
        text: What was given as `--sizes`.
        row_bytes: Bytes of a row.

    Raises:
        PlanError: It is neither, or the size is no whole number of rows.
    """
    parts = text.split(":")
    if len(parts) == 1:
        size_bytes = parse_bytes(text, "--sizes")
        if size_bytes % row_bytes or size_bytes == 0:
            below = max(size_bytes // row_bytes, 1) * row_bytes
            raise PlanError(f"--sizes {text}: a row is {row_bytes} bytes; expected a multiple, such as {below}")
        return (size_bytes // row_bytes,)
    factor = parts[2] if len(parts) == 3 else ""
    if not (factor.isascii() and factor.isdecimal() and int(factor) > 1):
        raise PlanError(f"--sizes {text!r}: expected one size, or FROM:TO:FACTOR such as 8:128MiB:2, the factor over 1")
    size_bytes, last_bytes = (parse_bytes(part, "--sizes") for part in parts[:2])
    if not 0 < size_bytes <= last_bytes:
        raise PlanError(f"--sizes {text}: expected sizes of at least 1 byte, the first not above the second")
    rows = []
    while size_bytes <= last_bytes:
        rows.append(max(size_bytes // row_bytes, 1))
        size_bytes *= int(factor)
    return tuple(dict.fromkeys(rows))
