"""A lab's topology with measured figures: one for all links that are alike."""

from dataclasses import replace

import pytest

from tools.netlab.figures import as_measured
from tools.netlab.network import racks


def pair(a, b, latency_us, gb_per_s, nominal=0.0125):
    return {"a": a, "b": b, "latency_us": latency_us, "gb_per_s": gb_per_s, "nominal_gb_per_s": nominal}


def test_links_that_are_alike_get_one_figure():
    nominal = racks(2, 2, 100.0)
    ends = [f"host{i}/CPU{j}" for i in (0, 1) for j in (0, 1)]
    pairs = [pair(ends[0], ends[1], 8.0, 2.0, None), pair(ends[2], ends[3], 9.0, 4.0, None)]
    between = [(100.0, 0.0119), (120.0, 0.0118), (4000.0, 0.0119), (150.0, 0.002)]
    pairs += [
        pair(a, b, *figures)
        for (a, b), figures in zip([(a, b) for a in ends[:2] for b in ends[2:]], between, strict=True)
    ]
    measured = as_measured(nominal, replace(nominal, facts={"ping_pong": {"pairs": pairs}}))
    by_kind = {}
    for link in measured.links:
        by_kind.setdefault(link.kind, set()).add((link.latency_us, link.gb_per_s, link.gb_per_s_source))
    assert {kind: len(figures) for kind, figures in by_kind.items()} == {"shared-memory": 1, "pcie": 1, "network": 1}
    ((latency_us, gb_per_s, source),) = by_kind["network"]
    assert gb_per_s == pytest.approx((0.0118 + 0.0119) / 2) and source == "measured"
    assert 50.0 <= latency_us <= 60.0  # half of the lower quartile: what waited for a core counts as little
    ((_, memory, _),) = by_kind["shared-memory"]
    assert memory == 4.0
    assert measured.digest != nominal.digest
