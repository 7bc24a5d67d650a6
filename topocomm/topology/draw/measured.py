"""Figures that ping-pong measured, beside the topology's, by pair."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from topocomm.topology.draw.names import plural
from topocomm.topology.model import Topology


def render(topology: Topology) -> str:
    """Return what `topocomm.measure` found as a table, a line for each pair of devices; assumed figures in brackets."""
    facts = topology.facts["ping_pong"]
    pairs = facts["pairs"]
    codes = {frozenset((pair.a, pair.b)): pair.code for pair in topology.pairs}
    width = max([len(f"{pair['a']} - {pair['b']}") for pair in pairs], default=0)
    lines = [
        f"Measured between {facts['ranks']} ranks by {facts['transport']}, one pair at a time: "
        f"{facts['latency_bytes']} B and {facts['bandwidth_bytes'] >> 20} MiB, one way",
        "",
        f"{'pair':<{width}}  {'code':<5}  {'us':>8}  {'nominal':>8}  {'x':>5}  {'GB/s':>8}  {'nominal':>8}  {'x':>5}",
    ]
    for pair in pairs:
        name = f"{pair['a']} - {pair['b']}"
        code = codes.get(frozenset((pair["a"], pair["b"]))) or "?"
        lines.append(f"{name:<{width}}  {code:<5}  {_figures(pair, 'latency_us')}  {_figures(pair, 'gb_per_s')}")
    if not pairs:
        lines[2:] = [f"{plural(facts['ranks'], 'rank')} share one device: no link lies between them"]
    return "\n".join(lines) + "\n"


def _figures(pair: Mapping[str, Any], key: str) -> str:
    measured, nominal = pair[key], pair[f"nominal_{key}"]
    if nominal is None:
        return f"{measured:>8.4g}  {'?':>8}  {'':>5}"
    words = f"({nominal:.4g})" if pair[f"nominal_{key}_source"] == "assumed" else f"{nominal:.4g} "
    return f"{measured:>8.4g}  {words:>8}  {measured / nominal if nominal else 0:>5.2f}"
