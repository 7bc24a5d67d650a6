"""Requests and plans on whole machines, for tests that want every algorithm."""

from __future__ import annotations

from typing import Any

from topocomm import Plan, Topology
from topocomm.operators.layout import Layout
from topocomm.operators.operator import Operator
from topocomm.planning import planner
from topocomm.planning.collectives import Collective, collective_of, shards_of
from topocomm.planning.request import Request, on_every_endpoint, whole_layout


def request_on(
    topology: Topology, collective: str, operator: Operator, layout: Layout, root: int = 0, **which: Any
) -> Request:
    """The request with one rank on every endpoint; `which` has parts, or the shards of canonical order."""
    shards = which.pop("shards", None)
    owned = shards_of("any" if shards is None else "canonical", len(topology.endpoints), shards)
    ranks, parts = len(topology.endpoints), which.pop("parts", None)
    if parts is None:
        made = collective_of(collective, ranks, layout.rows, root=root, shards=owned)
    else:
        made = Collective(collective, ranks, root, tuple(parts), owned)
    return on_every_endpoint(topology, made, operator, whole_layout(layout, made))


def every_plan(
    topology: Topology, collective: str, operator: Operator, layout: Layout, root: int = 0, **which: Any
) -> list[Plan]:
    """The plans of all algorithms that fit, with one rank on every endpoint, least predicted time first."""
    return planner.every_plan(topology, request_on(topology, collective, operator, layout, root, **which))
