"""The JSON that nccl-tests writes with `-J FILE`."""

from __future__ import annotations

import json
from pathlib import PurePath
from typing import Any

from topocomm.calibration.measured_table import MeasuredTable, checked_row, collective_named, increasing
from topocomm.errors import TopologyError


def matches(text: str) -> bool:
    """Whether the text begins like a JSON document that names results out of place."""
    return text.lstrip().startswith("{") and '"out_of_place"' in text


def read(text: str, source: str) -> tuple[MeasuredTable, ...]:
    """Return the table of a document.

    Raises:
        TopologyError: The document is cut off or lacks what nccl-tests writes; the place is named.
    """
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise TopologyError(f"{source}: line {error.lineno}: no JSON ({error.msg}): the file is cut off") from None
    results = document.get("results")
    if not isinstance(results, list) or not results:
        raise TopologyError(f"{source}: no `results`: nccl-tests was stopped before its first row")
    rows = [_row(source, place, result) for place, result in enumerate(results)]
    devices = document.get("config", {}).get("devices") or []
    return (
        MeasuredTable(
            name=PurePath(source).stem,
            source=source,
            collective=_collective(document, source),
            library=_library(document.get("nccl_version")),
            ranks=len({device["rank"] for device in devices}) or None,
            hosts=len({device["hostname"] for device in devices}) or None,
            rows=increasing(rows),
            env=dict(
                entry.split("=", 1)
                for entry in document.get("env", ())
                if isinstance(entry, str) and entry.startswith("NCCL_") and "=" in entry
            ),
        ),
    )


def _row(source: str, place: int, result: Any) -> Any:
    where = f"{source}: results[{place}]"
    try:
        cell = result.get("out_of_place") or result["in_place"]
        time_us = float(cell["time"] if "time" in cell else cell["cpu_time"])
        row = checked_row(where, int(result["size"]), time_us)
        algbw = float(cell["alg_bw"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, TopologyError):
            raise
        raise TopologyError(f"{where}: {error!r}: expected size and out_of_place with time, alg_bw") from None
    expected = row.payload_bytes / row.time_us / 1e3
    if abs(algbw - expected) > 0.01 + 0.02 * expected:
        raise TopologyError(f"{where}: alg_bw {algbw:g} GB/s disagrees with bytes / time = {expected:.4g} GB/s")
    return row


def _collective(document: dict[str, Any], source: str) -> str:
    words = [PurePath(word).name for word in document.get("args", ())[:1]]
    for word in [*words, PurePath(source).stem]:
        if name := collective_named(word):
            return name
    raise TopologyError(f"{source}: args {words}: expected the program's name first, such as all_reduce_perf")


def _library(version: Any) -> str:
    if not isinstance(version, int):
        return "NCCL"
    return f"NCCL {version // 10000}.{version // 100 % 100}.{version % 100}"
