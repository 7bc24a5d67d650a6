"""Compares a topology with facts written by hand, field by field."""

from __future__ import annotations

from typing import Any

from tests.topology.dumps import NO_FACTS
from topocomm.topology.model import Topology

NOTES = {*NO_FACTS, "links_note", "malformed"}


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
