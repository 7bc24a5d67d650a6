"""Plans as values: equal, saved, loaded, and in one line."""

import dataclasses

import topocomm
from tests.machines import switch
from topocomm import plan
from topocomm.planning.collectives import CARRYING


def test_the_title_names_an_operator_only_where_one_combines():
    assert plan(switch(3), payload_bytes=36).title == "allreduce sum"
    for name in CARRYING:
        made = plan(switch(3), name, payload_bytes=36)
        assert made.title == name and made.summary().startswith(f"{name} 36 B on 3 ranks: ")


def test_the_summary_is_one_line():
    text = plan(switch(8), payload_bytes=16_512).summary()
    assert "\n" not in text
    assert "8 ranks" in text and "proved" in text


def test_plans_are_values():
    first, second = plan(switch(5), payload_bytes=400), plan(switch(5), payload_bytes=400)
    assert first.digest == second.digest
    assert dataclasses.replace(first, objective="latency").digest != first.digest


def test_a_pipelined_plan_is_saved_and_loaded(tmp_path):
    made = plan(topocomm.catalog("dgx-1-v100"), "reduce", payload_bytes=1 << 24, objective="throughput", root=3)
    assert made.algorithm == "forest" and made.schedule.repeat is not None
    made.save(tmp_path / "plan.json")
    assert topocomm.Plan.load(tmp_path / "plan.json").digest == made.digest
