"""What a browser makes of plans as pages: no label lies on another or leaves its box."""

import pytest

from tests.thinning import thinned
from tests.topology.draw.browser import measured
from tests.topology.draw.test_browser import TEXTS, overlap
from topocomm import catalog, plan
from topocomm.planning.report.plan_html import dumps

PLANS = [
    ("dgx-h100", 2, 16384, "auto"),
    ("dgx-h100", 1, 16384, "latency"),
    ("dgx-h100", 4, 16384, "auto"),
    ("dgx-h100", 32, 16384, "auto"),
    ("dgx-1-v100", 1, 1 << 20, "throughput"),
    ("gb200-nvl72", 1, 16384, "auto"),
    ("mi300x-8", 1, 1 << 26, "auto"),
    ("mi250x", 1, 1 << 20, "throughput"),
    ("rtx4090-pcie-8", 1, 16384, "auto"),
]


@pytest.mark.parametrize(("system", "hosts", "payload_bytes", "objective"), thinned(PLANS, 3))
def test_labels_of_plans_are_apart_in_their_boxes(tmp_path, system, hosts, payload_bytes, objective):
    topology = catalog(system, hosts=hosts)
    made = plan(topology, "allreduce", payload_bytes=payload_bytes, objective=objective)
    result = measured(dumps(made, topology), TEXTS, tmp_path)
    assert result["errors"] == []
    texts = result["found"]["texts"]
    assert len(texts) > 20
    for index, one in enumerate(texts):
        for other in texts[index + 1 :]:
            assert not overlap(one["box"], other["box"]), (one, other)
        if one["room"]:
            left, top, right, bottom = one["room"]
            assert left - 0.5 <= one["box"][0] and one["box"][2] <= right + 0.5, one
            assert top - 0.5 <= one["box"][1] and one["box"][3] <= bottom + 0.5, one
