"""Values of options: byte counts (16512, 64KiB), ranges of sizes, endpoints that hold ranks."""

from __future__ import annotations

import re

from topocomm.errors import PlanError
from topocomm.topology.model import Topology

UNITS = {"": 1, "B": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "KB": 10**3, "MB": 10**6, "GB": 10**9}


def parse_bytes(text: str, option: str = "--bytes") -> int:
    """Parse a byte count, the value of `option`; KiB, MiB, GiB are binary, KB, MB, GB decimal.

    Raises:
        PlanError: The text is no byte count.
    """
    match = re.fullmatch(r"\s*([0-9]{1,18})\s*([A-Za-z]*)\s*", text)
    unit = match.group(2).upper() if match else None
    if match is None or unit not in UNITS:
        raise PlanError(f"{option} {text!r}: expected a whole number of bytes such as 16512, 64KiB or 8MiB")
    return int(match.group(1)) * UNITS[unit]


def parse_sizes(text: str, row_bytes: int) -> tuple[int, ...]:
    """Parse `A:B:FACTOR`, or one size, to numbers of whole rows.

    Sizes of a range are rounded down to whole rows, at least one, as nccl-tests does; a single size must be whole.

    Raises:
        PlanError: The text is neither, or the size is no whole number of rows.
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


def parse_ranks(text: str | None, topology: Topology) -> tuple[str, ...] | None:
    """Parse `--ranks`, a count of first endpoints or a list of ids, to endpoints; None if not given.

    Raises:
        PlanError: The topology has fewer endpoints than the count.
    """
    if text is None:
        return None
    if not re.fullmatch(r"-?[0-9]{1,9}", text):
        return tuple(part.strip() for part in text.split(","))
    count, most = int(text), len(topology.endpoints)
    if not 1 <= count <= most:
        raise PlanError(f"--ranks {count}: topology {topology.name!r} has {most} endpoints; expected 1 to {most}")
    return topology.endpoints[:count]
