"""A plan in the hands of a Python user: its words, its picture, its rivals."""

import numpy as np
import pytest

from tests.topology.draw.test_notebook import Parts, svg_of
from topocomm import Field, Operator, Plan, PlanError, catalog, plan, run_local
from topocomm.cli.main import main
from topocomm.planning.report.plan_views import MOST_ROWS, html

PAIR = catalog("dgx-h100", hosts=2)
OWN = Operator("own", (Field("x", dtype=np.float32),), lambda a, b: {"x": a["x"] + b["x"]}, 0, commutative=True)


@pytest.fixture(scope="module")
def made():
    return plan(PAIR, payload_bytes=65536)


def test_its_words_are_those_of_the_command(capsys):
    own = plan(PAIR, payload_bytes=65536, objective="throughput")
    arguments = ["plan", "--system", "dgx-h100", "--hosts", "2", "--bytes", "64KiB", "--objective", "throughput"]
    assert main(arguments) == 0
    assert own.text().splitlines() == capsys.readouterr().out.splitlines()
    assert "  sooner  objective auto takes" in own.text()


def test_candidates_come_best_first_with_what_they_cost_more(made):
    first, *others = made.candidates
    assert (first.algorithm, first.times, first.why) == (made.algorithm, 1.0, "chosen")
    assert (first.predicted_us, first.rounds) == (made.figures.predicted_us, made.rounds)
    assert [c.predicted_us for c in made.candidates] == sorted(c.predicted_us for c in made.candidates)
    flat = next(c for c in others if c.algorithm == "flat")
    assert flat.times == pytest.approx(flat.predicted_us / made.predicted_us, abs=1e-3)
    assert f"{flat.times:.2f} x: {flat.rounds} rounds, not {made.rounds}" in flat.why
    assert f"{flat.wire_bytes:,} B on the wire, not {made.figures.wire_bytes:,}" in flat.why
    assert "10.78 us" not in flat.why


def test_candidates_of_an_operator_of_ones_own_and_of_a_call():
    assert len(plan(PAIR, payload_bytes=4096, operator=OWN).candidates) > 5

    def rivals(comm):
        return comm.explain("allreduce", like=np.ones(4, np.float32), operator=OWN).candidates

    assert len(run_local(rivals, ranks=3)[0]) > 1


def test_a_notebook_shows_picture_and_candidates(made):
    parts = Parts(made._repr_html_())
    drawn = "".join(svg_of(next(tag for tag in parts.tags if tag[0] == "img")).itertext())
    assert "allreduce sum on dgx-h100 x 2" in drawn
    assert drawn in "".join(svg_of(("img", {"src": parts.tags[1][1]["src"]})).itertext())
    words = [candidate.algorithm for candidate in made.candidates]
    assert [text for text in parts.texts if text in words] == words[:MOST_ROWS]
    assert "dgx-h100 x 2" in made.svg()


def test_a_plan_from_a_file_needs_its_machine(made, tmp_path):
    made.save(tmp_path / "plan.json")
    read = Plan.load(tmp_path / "plan.json")
    assert read.digest == made.digest
    assert repr(read) == repr(made)
    assert "others  not known: the plan is from a file" in read.text(PAIR)
    assert read.svg(PAIR) == made.svg()
    assert "<img" not in html(read)
    with pytest.raises(PlanError, match="from a file: give the topology"):
        read.text()
    with pytest.raises(PlanError, match="from a file"):
        _ = read.candidates
    with pytest.raises(PlanError, match=r"for another topology .*'dgx-h100' has"):
        read.svg(catalog("dgx-h100"))


def test_an_equal_machine_of_another_name_is_shown_by_its_own(made):
    from dataclasses import replace

    mine = replace(PAIR, name="mine")
    assert "on mine" in plan(mine, payload_bytes=65536).text()
    assert "on dgx-h100 x 2" in plan(PAIR, payload_bytes=65536).text()
