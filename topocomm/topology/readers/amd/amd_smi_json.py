"""`amd-smi topology --json`, before and since ROCm 6.3, and what JSON of AMD's tools has in common.

Before: one object per GPU with a map per table (`"weight": {"gpu_0": 0, "gpu_1": 15}`). Since: one object per GPU with
a list of `links`, one per GPU and itself. What the command line filters out is absent.
"""

from __future__ import annotations

import json
import re
from typing import Any

from topocomm.topology.model import Device, Topology
from topocomm.topology.readers.amd.amd_smi import BUS_ID
from topocomm.topology.readers.amd.amd_tables import MAX_GPUS, NOT_AVAILABLE, Table, fail, host_of_tables
from topocomm.topology.readers.plain import strict_json

SOURCE = "amd-smi topology --json"

_LINK_KEYS = {
    "link_status": "access",
    "weight": "weight",
    "num_hops": "hops",
    "link_type": "link_type",
    "bandwidth": "numa_bw",
    "coherent": "coherency",
    "atomics": "atomics",
    "dma": "dma",
    "bi_dir": "bidirectional",
}
_OLD_NAMES = {"link_status": "link_accessibility", "num_hops": "hops", "bandwidth": "numa_bandwidth"}
_MAP_KEYS = {_OLD_NAMES.get(key, key): fact for key, fact in _LINK_KEYS.items()}
_GPU_KEY = re.compile(r"gpu_([0-9]{1,4})")
_MARK = re.compile(rf'"(?:links|{"|".join(_MAP_KEYS)})"\s{{0,9}}:')
_REMEDY = "give the whole output of `amd-smi topology --json`"
_START = re.compile(r"^[ \t]*([\[{])", re.MULTILINE)
_STOP = re.compile(r"([\]}])[ \t\r]*$", re.MULTILINE)
_TOPOLOGY = re.compile(r'"(?:links?|link_\w+|weight|hops|xgmi_metric|\(Topology\)[^"]{0,100})"')
_ELIDED = re.compile(r"^[ \t]*(?:\.\.\.|…),?[ \t]*$", re.MULTILINE)

Item = dict[str, Any]


def matches(text: str) -> bool:
    """Return whether the text has a JSON list of GPUs with keys of the tool's topology, be it damaged."""
    has_gpus = '"gpu"' in text and '"link_metrics"' not in text
    return has_gpus and document_start(text, "[") is not None and _MARK.search(text) is not None


def read(text: str, name: str) -> Topology:
    """Return the host that the document describes."""
    items = objects(document_in(text, name, "["), f"{name}: ")
    if not items:
        fail(f"{name}:1", f"a list without GPUs; {_REMEDY}")
    if len(items) > MAX_GPUS:
        fail(f"{name}:1", f"{len(items)} GPUs; a host has at most {MAX_GPUS}")
    places = [f"{name}: [{i}]" for i in range(len(items))]
    numbers = [gpu_number(item, place) for item, place in zip(items, places, strict=True)]
    if len(set(numbers)) < len(numbers):
        fail(places[-1], f"two objects have the same 'gpu' number; {_REMEDY}")
    new = any("links" in item for item in items)
    row_of = _from_links if new else _from_maps
    rows = [row_of(item, numbers, place) for item, place in zip(items, places, strict=True)]
    axis = tuple(f"GPU{number}" for number in numbers)
    tables = []
    for title, key in (_LINK_KEYS if new else _MAP_KEYS).items():
        have = [title in row for row in rows]
        if not any(have):
            continue
        if not all(have):
            fail(places[have.index(False)], f"{title!r} is missing, other GPUs have it; {_REMEDY}")
        tables.append(Table(key, title, axis, [tuple(row[title]) for row in rows], places))
    addresses = [bus_id(item, place) for item, place in zip(items, places, strict=True)]
    gpus = [Device(gpu, "gpu", bus_id=address) for gpu, address in zip(axis, addresses, strict=True)]
    return host_of_tables(name, SOURCE, gpus, tables, ({}, [], _REMEDY))


def document_in(text: str, name: str, brackets: str = "[{") -> Any:
    """Return the document that starts on the first line with one of the brackets.

    Warnings of the tool may stand above it, a prompt below.

    Raises:
        TopologyError: No JSON, or cut short, or a sample with lines left out; names line and column.
    """
    start = document_start(text, brackets) or 0
    stop = max((mark.start(1) + 1 for mark in _STOP.finditer(text, start)), default=len(text))
    body = "\n" * text.count("\n", 0, start) + text[start : max(stop, start)]
    try:
        return strict_json.loads(body)
    except json.JSONDecodeError as error:
        if error.msg == "Extra data" and _TOPOLOGY.search(body, error.pos) is None:
            return strict_json.loads(body[: error.pos])  # another command's document stands below
        place = f"{name}:{error.lineno}"
        if (elided := _ELIDED.search(body)) is not None:
            lost = f"lines were left out (line {body.count(chr(10), 0, elided.end()) + 1}: '...')"
            words = f"{lost}: a sample of a manual; give the whole output of the tool"
            fail(place, f"not JSON at column {error.colno}, and {words}")
        hint = "; it ends too early" if error.pos >= len(body.rstrip()) else ""
        fail(place, f"not JSON: {error.msg} at column {error.colno}{hint}; give the whole output")
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits, thousands of brackets
        fail(name, f"not usable JSON: {error}")


def document_start(text: str, brackets: str) -> int | None:
    """Return where a line of the text starts a document with one of the brackets; None where none does."""
    for mark in _START.finditer(text):
        # A line such as `[user@host ~]$` is a prompt, `[0m` an escape; a document goes on with another value or ends.
        if mark.group(1) in brackets and re.match(
            r"[\[{]\s*(?:[\[{\"\]}.…]|\Z)", text[mark.start(1) : mark.end() + 200]
        ):
            return mark.start(1)
    return None


def objects(value: Any, place: str) -> list[Item]:
    """Return the value if it is a list of objects."""
    if not isinstance(value, list):
        fail(place, f"expected a list of objects, got {_shown(value)}")
    for i, item in enumerate(value):
        if not isinstance(item, dict):
            fail(f"{place}[{i}]", f"expected an object, got {_shown(item)}")
    return value


def gpu_number(item: Item, place: str) -> int:
    """Return the `gpu` of an object."""
    number = item.get("gpu")
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < 10_000:
        fail(f"{place}.gpu", f"expected the number of a GPU, got {_shown(number)}")
    return number


def bus_id(item: Item, place: str) -> str | None:
    """Return the `bdf` of an object; early versions have none."""
    text = item.get("bdf")
    if text in (None, NOT_AVAILABLE):
        return None
    if not isinstance(text, str) or not BUS_ID.fullmatch(text):
        fail(f"{place}.bdf", f"expected a bus id such as 0000:0c:00.0, got {_shown(text)}")
    return text


def _from_links(item: Item, numbers: list[int], place: str) -> dict[str, list[str]]:
    links = objects(item.get("links"), f"{place}.links")
    by_gpu = {gpu_number(link, at := f"{place}.links[{i}]"): (link, at) for i, link in enumerate(links)}
    if len(by_gpu) < len(links):
        fail(f"{place}.links", f"two of them lead to the same GPU; {_REMEDY}")
    _check_ends(set(by_gpu), numbers, f"{place}.links")
    rows = {}
    for key in _LINK_KEYS:
        have = [key in by_gpu[number][0] for number in numbers]
        if any(have):
            if not all(have):
                fail(by_gpu[numbers[have.index(False)]][1], f"{key!r} is missing, other links have it; {_REMEDY}")
            rows[key] = [_cell(by_gpu[number][0][key], f"{by_gpu[number][1]}.{key}") for number in numbers]
    return rows


def _from_maps(item: Item, numbers: list[int], place: str) -> dict[str, list[str]]:
    rows = {}
    for key in _MAP_KEYS:
        values = item.get(key)
        if values is None:
            continue
        if not isinstance(values, dict):
            fail(f"{place}.{key}", f"expected an object with gpu_0, gpu_1 and so on, got {_shown(values)}")
        ends = {int(end[1]): value for name, value in values.items() if (end := _GPU_KEY.fullmatch(name))}
        _check_ends(set(ends), numbers, f"{place}.{key}")
        rows[key] = [_cell(ends[number], f"{place}.{key}.gpu_{number}") for number in numbers]
    return rows


def _check_ends(ends: set[int], numbers: list[int], place: str) -> None:
    missing = [number for number in numbers if number not in ends]
    if missing:
        fail(place, f"nothing for GPU {missing[0]}; {_REMEDY}")
    if len(ends) > len(numbers):
        fail(place, f"GPU {min(ends - set(numbers))} has no object of its own; {_REMEDY}")


def _cell(value: Any, place: str) -> str:
    """Return the value as the tool's tables print it."""
    if isinstance(value, str):  # maybe an error; XMGI is a misprint of ROCm 5
        return NOT_AVAILABLE if value.startswith("AMDSMI_STATUS_") else value.replace("XMGI", "XGMI")
    if not isinstance(value, int):
        fail(place, f"expected a text or a whole number, got {_shown(value)}")
    return str(value)


def _shown(value: Any) -> str:
    return "nothing" if value is None else json.dumps(value)[:40]
