"""`amd-smi xgmi --json`: a list of GPUs, since ROCm 6.4 inside an object with a list per table.

The shapes are those of the tool's source; no output of a machine was at hand to check them.
"""

from __future__ import annotations

import re
from typing import Any

from topocomm.topology.readers.amd.amd_json import document_in, starts_with
from topocomm.topology.readers.amd.amd_smi_json import bus_id, gpu_number, objects
from topocomm.topology.readers.amd.amd_tables import MAX_GPUS, NOT_AVAILABLE, fail
from topocomm.topology.readers.amd.xgmi_listing import Listing, Metrics, figure

_KEYS = ("xgmi_metric", "source_status", "link_status")
_MARK = re.compile(r'"(?:link_metrics|xgmi_metric)"\s{0,9}:')
_LINK_TYPES = ("XGMI", "PCIE", "UNKNOWN", NOT_AVAILABLE)
_STATE = re.compile(r"[UDX](?:/[UDX]){0,15}|N/A|SELF")


def is_json(text: str) -> bool:
    """True if the text has a JSON document with the tool's keys, be it damaged."""
    return _MARK.search(text) is not None and starts_with(text, "[{")


def parse_json(text: str, name: str) -> Listing:
    """The tables in the document.

    Raises:
        TopologyError: Not JSON, or a key that is missing or breaks its type; names the JSON path.
    """
    document = document_in(text, name)
    tables = document if isinstance(document, dict) else {"xgmi_metric": document}
    listing = Listing((), {}, {}, {}, {}, {}, [])
    gpus: tuple[str, ...] = ()
    for key in _KEYS:
        value = tables.get(key)
        if not value:
            continue
        if isinstance(value, list) and len(value) == 1 and isinstance(value[0], list):
            value = value[0]  # the tool wraps this list twice
        place = f"{name}: {key}"
        items = objects(value, place)
        if len(items) > MAX_GPUS:
            fail(place, f"{len(items)} GPUs; a host has at most {MAX_GPUS}")
        found = tuple(f"GPU{gpu_number(item, f'{place}[{i}]')}" for i, item in enumerate(items))
        if len(set(found)) < len(found) or (gpus and found != gpus):
            fail(place, "the GPUs are not those of the list before, or one is there twice; give the whole output")
        gpus = found
        for i, (gpu, item) in enumerate(zip(gpus, items, strict=True)):
            listing.bus_ids.setdefault(gpu, bus_id(item, f"{place}[{i}]"))
            _take(listing, key, gpu, gpus, item, f"{place}[{i}]")
    if not gpus:
        fail(f"{name}:1", f"no GPU under {', '.join(_KEYS)}; give the whole output of `amd-smi xgmi --json`")
    return listing._replace(gpus=gpus)


def _take(listing: Listing, key: str, gpu: str, gpus: tuple[str, ...], item: dict[str, Any], place: str) -> None:
    if key == "xgmi_metric":
        metrics = item.get("link_metrics")
        if not isinstance(metrics, dict):
            fail(f"{place}.link_metrics", "expected an object")
        listing.metrics[gpu] = _metrics(metrics, gpus, f"{place}.link_metrics")
        return
    states = item.get("link_status")
    if not isinstance(states, list) or not all(isinstance(s, str) and _STATE.fullmatch(s) for s in states):
        fail(f"{place}.link_status", "expected a list of U, D, X and N/A")
    if key == "source_status":
        listing.ports[gpu] = states
    elif len(states) != len(gpus):
        fail(f"{place}.link_status", f"{len(states)} states for {len(gpus)} GPUs; give the whole output")
    else:
        listing.status.update({(gpu, end): s for end, s in zip(gpus, states, strict=True) if s != "SELF"})


def _metrics(metrics: dict[str, Any], gpus: tuple[str, ...], place: str) -> Metrics:
    link_type = metrics.get("link_type")
    if link_type not in _LINK_TYPES:
        fail(f"{place}.link_type", f"expected one of {', '.join(_LINK_TYPES)}")
    links = objects(metrics.get("links"), f"{place}.links")
    reads = {f"GPU{gpu_number(link, f'{place}.links[{i}]')}": _amount(link.get("read")) for i, link in enumerate(links)}
    if set(reads) != set(gpus):
        fail(f"{place}.links", "not one link for each GPU of the list; give the whole output")
    rates = [_figure(metrics.get(key), f"{place}.{key}") for key in ("bit_rate", "max_bandwidth")]
    return Metrics(rates[0], rates[1], link_type, tuple(reads[gpu] for gpu in gpus))


def _figure(value: Any, place: str) -> float | None:
    number = value.get("value") if isinstance(value, dict) else value
    if number in (None, NOT_AVAILABLE):
        return None
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number < 2**64:
        fail(place, "expected a number of Gb/s, alone or as an object with 'value' and 'unit'")
    return figure(number)


def _amount(value: Any) -> str:
    """A cell as the table prints it; only whether it has a number counts."""
    if isinstance(value, dict):
        return f"{value.get('value')} {value.get('unit')}"
    return NOT_AVAILABLE if value in (None, NOT_AVAILABLE) else "counted"
