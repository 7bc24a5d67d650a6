"""`amd-smi xgmi` (ROCm 6.1 and later; also `-m`, `-s`, `-l` alone), as text and as JSON.

The link metric table names the link type and the rate per GPU, not per pair; its Read and Write rows are traffic, from
which only a cell without a number says something: since ROCm 6.4 it is a pair without a link. The link status table is
per pair, with one letter per link.
"""

from __future__ import annotations

from itertools import combinations
from pathlib import PurePath
from typing import Any

from topocomm.topology.inference.host_tree import PairKey, group_words
from topocomm.topology.inference.xgmi import Joined, xgmi_links
from topocomm.topology.model import Device, Topology
from topocomm.topology.readers.amd.amd_tables import NOT_AVAILABLE, host_of_pairs
from topocomm.topology.readers.amd.xgmi_listing import TITLES, Listing, TextParser, is_json, parse_json
from topocomm.topology.readers.plain.paste import same_or_all

SOURCE = "amd-smi xgmi"

_SLOWEST_GB = 20
"""Gb/s per lane. Up to ROCm 6.3 the tool printed the PCIe slot's rate: 16 Gb/s is PCIe 4, and slower than any xGMI."""
_FASTEST_GB = 200
"""Gb/s per lane."""
_MAX_LANES = 32
_LINKS_PER_GPU = 7


def matches(text: str) -> bool:
    """Return whether the text has the title of one of the tables, or their JSON."""
    return is_json(text) or any(title in text for title in TITLES)


def read(text: str, name: str) -> Topology:
    """Return the host that the tables describe."""
    listing = parse_json(text, name) if is_json(text) else TextParser(text, name).parse()
    base = PurePath(name).name
    warnings = list(listing.warnings)
    gpus = [Device(gpu, "gpu", bus_id=listing.bus_ids[gpu]) for gpu in listing.gpus]
    codes = _codes(listing)
    warnings += [f"{base}: {words}" for words in _doubts(listing, codes)]
    fabric = xgmi_links(_joined(listing, codes))
    warnings += [f"{base}: {words}" for words in fabric.warnings]
    return host_of_pairs(base, SOURCE, gpus, (codes, {}), fabric, (_facts(listing), warnings))


def _codes(listing: Listing) -> dict[PairKey, str | None]:
    """Return the link type by pair; None where the tool speaks of the GPUs but not of the pair; empty without any."""
    types = {gpu: row.link_type for gpu, row in listing.metrics.items()}
    cells = {
        (a, b): cell
        for a, row in listing.metrics.items()
        for b, cell in zip(listing.gpus, row.read, strict=False)
        if a != b
    }
    counted = any(cell != NOT_AVAILABLE for cell in cells.values())
    codes: dict[PairKey, str | None] = {}
    for a, b in combinations(listing.gpus, 2):
        status = {listing.status.get(pair, NOT_AVAILABLE) for pair in ((a, b), (b, a))}
        ends = types.get(a), types.get(b)
        unlinked = cells.get((a, b)) == cells.get((b, a)) == NOT_AVAILABLE
        codes[a, b] = None
        if status != {NOT_AVAILABLE}:
            codes[a, b] = "XGMI"
        elif ends == ("XGMI", "XGMI"):
            codes[a, b] = None if counted and unlinked and len(listing.gpus) > 2 else "XGMI"
        elif "PCIE" in ends and set(ends) <= {"XGMI", "PCIE"}:
            codes[a, b] = "PCIE"
    return codes if any(codes.values()) else {}


def _doubts(listing: Listing, codes: dict[PairKey, str | None]) -> list[str]:
    """Return warnings of what the tables do not say, or say that is not used."""
    doubts = []
    if unknown := [f"{a}-{b}" for (a, b), code in codes.items() if code is None]:
        doubts.append(f"no link type for {group_words(unknown)}")
    if listing.metrics and not codes:
        doubts.append("no GPU has a link type: the machine has no xGMI links, or the tool cannot read them")
    if down := [f"{a}-{b}" for (a, b), status in listing.status.items() if {"D", "X"} & set(status.split("/"))]:
        doubts.append(f"links of {group_words(down)} are down or disabled")
    slow = {row.bit_rate for row in listing.metrics.values() if row.bit_rate and row.bit_rate < _SLOWEST_GB}
    if slow and "XGMI" in codes.values():
        doubts.append(f"{min(slow)} Gb/s is the rate of the PCIe slot, not of xGMI; it is not used")
    return doubts


def _joined(listing: Listing, codes: dict[PairKey, str | None]) -> dict[PairKey, Joined]:
    """Return links and GB/s of each XGMI pair, as far as the tool says."""
    rates: set[float | None] = set()  # of one link
    for bit_rate, most, *_ in listing.metrics.values():
        is_whole = bit_rate and most and most / bit_rate in range(1, _MAX_LANES + 1)
        rates.add(most / 8 if bit_rate and most and is_whole and _SLOWEST_GB <= bit_rate <= _FASTEST_GB else None)
    rate = rates.pop() if len(rates) == 1 else None
    joined = {}
    for (a, b), code in codes.items():
        if code != "XGMI":
            continue
        lanes = None
        states = [listing.status[pair] for pair in ((a, b), (b, a)) if pair in listing.status]
        if set(states) - {NOT_AVAILABLE}:
            lanes = min(state.split("/").count("U") for state in states)
        elif _LINKS_PER_GPU // (len(listing.gpus) - 1) == 1 and all(code == "XGMI" for code in codes.values()):
            lanes = 1  # a GPU with links to more than half of _LINKS_PER_GPU others has one link for each
        joined[a, b] = Joined(lanes, rate * lanes if rate and lanes else None)
    return joined


def _facts(listing: Listing) -> dict[str, Any]:
    facts: dict[str, Any] = dict(listing.facts)
    if listing.metrics:
        rows = listing.metrics
        facts["bit_rate_gbps"] = same_or_all({gpu: row.bit_rate for gpu, row in rows.items()})
        facts["max_bandwidth_gbps"] = same_or_all({gpu: row.max_bandwidth for gpu, row in rows.items()})
        if own := {gpu: row.read[i] for i, gpu in enumerate(listing.gpus) if (row := rows.get(gpu)) and row.read}:
            facts["self"] = same_or_all(own)
    if listing.status:
        facts["link_status"] = {
            f"{a}-{b}": status
            for (a, b), status in listing.status.items()
            if listing.gpus.index(a) < listing.gpus.index(b) or listing.status.get((b, a)) != status
        }
    if listing.ports:
        facts["port_status"] = listing.ports
    return facts
