"""Compares a topology with facts written by hand, field by field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from topocomm.topology.model import Topology

SHARED = Path(__file__).parents[4] / "shared/topologies"
NOTES = ("kind", "notes", "links_note", "malformed")


def shared(kind: str) -> list[Path]:
    """The dumps of a kind that lie beside the repository; none where they are absent."""
    return sorted(path for path in (SHARED / kind).glob("*") if not path.name.endswith(".expect.json"))


def expected(path: Path) -> dict[str, Any]:
    """The facts beside a dump."""
    facts: dict[str, Any] = json.loads(path.with_suffix(".expect.json").read_text())
    return facts


def codes_of(topology: Topology) -> dict[str, str | None]:
    """The code of each GPU pair."""
    kinds = {device.id: device.kind for device in topology.devices}
    return {f"{p.a}-{p.b}": p.code for p in topology.pairs if {kinds[p.a], kinds[p.b]} == {"gpu"}}


def assert_facts(topology: Topology, facts: dict[str, Any]) -> None:
    """Every fact is in the topology."""
    kinds = [str(device.kind) for device in topology.devices]
    for key, value in facts.items():
        if key in NOTES:
            continue
        if key in ("gpus", "nics"):
            assert kinds.count(key[:-1]) == value, key
        elif key == "links":
            codes = codes_of(topology)
            assert codes == (value if value is not None else dict.fromkeys(codes)), key
        elif key in ("busids", "numa_affinity", "cpu_affinity", "nic_numa"):
            field = {"busids": "bus_id", "cpu_affinity": "cpu_affinity"}.get(key, "numa")
            assert {name: getattr(topology.by_id[name], field) for name in value} == value, key
        else:
            assert topology.facts.get(key) == value, key
