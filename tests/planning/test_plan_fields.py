"""What a plan says of a library's own call."""

from dataclasses import replace

import topocomm
from topocomm import (
    catalog,
)
from topocomm.planning.native import native_of


def test_a_summary_names_the_call():
    plan = topocomm.plan(catalog("dgx-h100"), payload_bytes=64 << 20)
    assert plan.native_call == "ncclAllReduce"
    assert "by ncclAllReduce, predicted 283.15 us; else direct" in plan.summary()
    assert f"predicted {plan.native.planned_us:.2f} us (auto" in plan.summary()  # both counted alike
    kept = replace(plan, native=None)
    assert (kept.native_call, kept.predicted_us) == ("", plan.figures.predicted_us)
    assert native_of(kept, catalog("dgx-h100"), "float32") == plan.native
