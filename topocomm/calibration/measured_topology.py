"""A topology with fitted figures: on its links, which plans go by, and as the fact that library algorithms read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from topocomm.calibration.fit_figures import Fit
from topocomm.planning.libraries.library_figures import DEFAULTS, FACT
from topocomm.topology.links import assume
from topocomm.topology.model import Link, Topology

_HOPS = {"nvlink": "nccl.hop_us.nvlink.LL", "xgmi": "nccl.hop_us.xgmi.LL", "pcie": "nccl.hop_us.pcie.LL"}
_HOPS |= {"network": "nccl.hop_us.network.LL"}
"""Figure of a hop that the links of a kind make up, least latency of NCCL's protocols."""
_SHARES: dict[str, tuple[str, ...]] = {"nvlink": ("efficiency.nvlink",), "xgmi": ("efficiency.xgmi",)}
_SHARES |= {"pcie": ("efficiency.pcie",), "network": ("efficiency.network", "mpi.efficiency")}
"""Figures that say which share of a kind's rate payloads get; the first that was fitted counts."""


def with_figures(topology: Topology, fit: Fit) -> Topology:
    """Return the topology with what was fitted.

    GB/s of the links of a kind are multiplied by the share that payloads get of them, latencies by what a hop takes
    over its default, and `launch_us` is the start of a collective. Figures that no row told stay as they are. The fact
    `calibration` keeps all fitted figures; its shares are of the links' new rates: 1 for those that are on the links.
    """
    factors = {kind: _factor(names, fit) for kind, names in _SHARES.items()}
    links = tuple(_measured(link, factors.get(link.kind), fit) for link in topology.links)
    kept = {name: fit.figures[name] for name in fit.fitted}
    for kind, names in _SHARES.items():
        base = factors[kind]
        if base is not None:
            kept |= {name: min(fit.figures[name] / base, 1.0) for name in names}
    fact: dict[str, Any] = {"figures": dict(sorted(kept.items()))}
    if fit.has_ll128 is not None:
        fact["has_ll128"] = fit.has_ll128
    launch_us = fit.figures["nccl.start_us.LL"] if "nccl.start_us.LL" in fit.fitted else topology.launch_us
    return replace(topology, links=links, launch_us=launch_us, facts={**topology.facts, FACT: fact})


def _factor(names: tuple[str, ...], fit: Fit) -> float | None:
    """The share of a kind's rate that was fitted; None where none was."""
    return next((fit.figures[name] for name in names if name in fit.fitted), None)


def _measured(link: Link, share: float | None, fit: Fit) -> Link:
    if share is not None:
        nominal = link.gb_per_s if link.gb_per_s is not None else assume(link.kind).gb_per_s
        link = link._replace(gb_per_s=round(nominal * share, 6), gb_per_s_source="measured")
    name = _HOPS.get(link.kind)
    if name in fit.fitted:
        nominal_us = link.latency_us if link.latency_us is not None else assume(link.kind).latency_us
        latency_us = round(nominal_us * fit.figures[name] / DEFAULTS[name], 6)
        link = link._replace(latency_us=latency_us, latency_us_source="measured")
    return link
