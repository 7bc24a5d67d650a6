"""What a plan was chosen from, and what a defect costs."""

import pytest

from tests.machines import hosts, switch
from tests.plans import every_plan
from topocomm import PROD, SUM, catalog, plan
from topocomm.planning.report.plan_comparison import Rival, behind, defect, figure_of, ranked
from topocomm.topology.merge.degradation import without


@pytest.mark.parametrize("objective", ["auto", "latency", "rounds", "throughput"])
@pytest.mark.parametrize("collective", ["allreduce", "reduce", "allgather", "exscan"])
def test_the_plan_is_the_best_of_its_rivals(collective, objective):
    topology = switch(6)
    made = plan(topology, collective, payload_bytes=4800, objective=objective)
    rivals = ranked(made, topology, SUM)
    assert rivals[0].algorithm == made.algorithm
    assert rivals[0].figure == pytest.approx(figure_of(made, made.figures), abs=1e-8)
    assert rivals[0].predicted_us == pytest.approx(made.figures.predicted_us, abs=1e-8)
    figures = [rival.figure for rival in rivals]
    assert figures == pytest.approx(sorted(figures, reverse=objective == "throughput"))
    if objective == "auto":
        every = every_plan(topology, collective, SUM, SUM.default_layout(1200))
        wanted = {one.algorithm: one.figures.predicted_us for one in every}
        assert {rival.algorithm: rival.predicted_us for rival in rivals} == pytest.approx(wanted, abs=1e-8)


def test_rivals_keep_to_what_the_operator_allows():
    topology = switch(4)
    made = plan(topology, payload_bytes=64, operator=PROD)
    assert {rival.algorithm for rival in ranked(made, topology, PROD)} >= {"ring", "flat"}


def test_a_defect_is_told_by_the_objective():
    cluster = hosts(2, 2)
    names = ["h0/NIC1"]
    broken = without(cluster, names)
    for objective, word in (("latency", "latency"), ("auto", "4096 B"), ("throughput", "throughput")):
        before, after = (plan(t, payload_bytes=4096, objective=objective) for t in (cluster, broken))
        told = defect(before, after, names)
        a, b = figure_of(before, before.figures), figure_of(after, after.figures)
        unit = "GB/s" if objective == "throughput" else "us"
        assert told.startswith(f"without h0/NIC1: {word} {b / a - 1:+.0%} ({a:.2f} -> {b:.2f} {unit}), ")
    same = plan(cluster, payload_bytes=4096)
    assert defect(same, same, ["a", "b"]).endswith(f"us, plan still {same.algorithm}")
    assert "without a, b: 4096 B still " in defect(same, same, ["a", "b"])
    assert defect(same, same, ["a"], ["b=3"]).startswith("without a, with b=3 GB/s: 4096 B still ")
    assert defect(same, same, [], ["b=3", "c=4"]).startswith("with b=3, c=4 GB/s: 4096 B still ")


def test_how_far_a_rival_is_behind_goes_by_the_objective():
    machine = switch(8)
    for objective, far in (("latency", "2.00x"), ("rounds", "2.00x"), ("throughput", "1.50x")):
        made = plan(machine, payload_bytes=0, objective=objective)
        own = figure_of(made, made.figures)
        told = behind(made, Rival("other", own / 1.5 if objective == "throughput" else own * 2, predicted_us=0.0))
        assert told == far
        assert behind(made, Rival("other", own, predicted_us=1e9)) == "as good"
    still = plan(switch(1), payload_bytes=0, objective="latency")
    assert behind(still, Rival("other", 1.0, 1.0)) == "worse"
    assert behind(still, Rival("other", 0.0, 0.0)) == "as good"


def test_another_schedule_of_the_same_algorithm_is_a_new_plan():
    cluster = catalog("dgx-h100", hosts=2)
    before, after = (
        plan(t, payload_bytes=1 << 20, objective="throughput") for t in (cluster, without(cluster, ["rail3"]))
    )
    assert before.algorithm == after.algorithm == "forest"
    assert defect(before, after, ["rail3"]).endswith("GB/s), new plan forest")
    one, other = every_plan(cluster, "allreduce", SUM, SUM.default_layout(16))[:2]
    assert one.schedule.chunks == other.schedule.chunks
    assert f", new plan {other.algorithm}" in defect(one, other, ["rail3"])
