"""Tables of public measurements as JSON: `machine`, `n_hosts`, `n_gpus`, `collective`, `library`, `env`, `rows`."""

from __future__ import annotations

import json
from pathlib import PurePath
from typing import Any

from topocomm.calibration.measured_table import (
    MeasuredRow,
    MeasuredTable,
    Memory,
    check_bandwidth,
    checked_row,
    collective_named,
    increasing,
)
from topocomm.errors import TopologyError


def matches(text: str) -> bool:
    """Whether the text begins like such a document."""
    return text.lstrip().startswith("{") and '"machine"' in text and '"collective"' in text


def read(text: str, source: str) -> tuple[MeasuredTable, ...]:
    """Return the table of a document; none where it has matrices in place of rows.

    Raises:
        TopologyError: The document is cut off or lacks a field; the place is named.
    """
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise TopologyError(f"{source}: line {error.lineno}: no JSON ({error.msg}): the file is cut off") from None
    if "rows" not in document:
        return ()
    for key in ("machine", "collective", "library"):
        if key not in document:
            raise TopologyError(f"{source}: no {key!r}; expected machine, collective, library and rows")
    collective = collective_named(document["collective"])
    if document["collective"] == "pt2pt_pairs":
        collective = "message"
    if collective is None:
        raise TopologyError(f"{source}: collective {document['collective']!r} is not known")
    words = str(document["library"])
    on_host = "host buffers" in words or (document.get("n_gpus") == 0)
    memory: Memory = "host" if on_host else "device"
    suspect = str(document.get("reason") or "said to be suspect") if document.get("suspect") else None
    env = {key: str(value) for key, value in (document.get("env") or {}).items()}
    return (
        MeasuredTable(
            name=str(document.get("slug") or PurePath(source).stem),
            source=source,
            collective=collective,
            library=words,
            ranks=document.get("n_ranks") or document.get("n_gpus") or None,
            hosts=document.get("n_hosts"),
            rows=increasing(_rows(document["rows"], source)),
            memory=memory,
            pairs=int(env["pairs"]) if "pairs" in env else None,
            machine=str(document["machine"]),
            env=env,
            suspect=suspect,
        ),
    )


def _rows(rows: Any, source: str) -> list[MeasuredRow]:
    found = []
    for number, row in enumerate(rows):
        place = f"{source}: rows[{number}]"
        try:
            entry = checked_row(place, int(row["bytes"]), float(row["time_us"]))
            algbw = row.get("algbw_GBps")
        except (AttributeError, KeyError, TypeError) as error:
            raise TopologyError(f"{place}: {error!r}: expected bytes and time_us") from None
        if algbw is not None:
            check_bandwidth(place, entry, str(algbw), str(row["time_us"]))
        found.append(entry)
    if not found:
        raise TopologyError(f"{source}: no rows")
    return found
