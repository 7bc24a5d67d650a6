"""The file of tuned configurations, and what the tables do with it."""

import json

import pytest

from attention.gpu.decode import decode_table
from attention.gpu.prefill import prefill_table
from attention.gpu.tuned import Tuned
from topocomm import TopocommError

DECODE = decode_table.problem_of("sm_90", 2, 128, 4)
PREFILL = prefill_table.problem_of("gfx942", 16, 128)


@pytest.fixture(params=[(decode_table, DECODE, "cut_for"), (prefill_table, PREFILL, "tile_for")])
def table(request, monkeypatch, tmp_path):
    """(module, problem, what chooses), with a file of its own."""
    module, problem, chooser = request.param
    monkeypatch.setattr(module, "TUNED", Tuned(tmp_path / "table.json"))
    return module, problem, getattr(module, chooser)


def test_what_is_recorded_comes_before_the_rules(table):
    module, problem, choose = table
    rule, other = list(module.candidates(problem))[:2]
    assert choose(problem) == rule == module.by_rule(problem)
    module.TUNED.record(problem.arch, {problem.key: other})
    assert choose(problem) == other
    assert type(choose(problem)) is type(other)
    assert choose(problem._replace(arch="sm_80")) == module.by_rule(problem._replace(arch="sm_80"))
    module.TUNED.record(problem.arch, {"another": other})
    again = Tuned(module.TUNED.path)
    assert again.find(problem.arch, problem.key) == list(other)
    assert json.loads(again.path.read_text()) == {problem.arch: {problem.key: list(other), "another": list(other)}}


def test_what_is_tried_comes_before_all(table):
    module, problem, choose = table
    rule, first, second = list(module.candidates(problem))[:3]
    module.TUNED.record(problem.arch, {problem.key: first})
    with module.TUNED.trying(second):
        assert choose(problem) == choose(problem._replace(arch="sm_80")) == second
    assert choose(problem) == first != rule


@pytest.mark.parametrize("there", [True, False])
def test_another_directory_takes_the_place_of_the_packages(table, monkeypatch, tmp_path, there):
    """Also where it has no such file: then the rules hold."""
    module, problem, choose = table
    rule, own, other = list(module.candidates(problem))[:3]
    module.TUNED.record(problem.arch, {problem.key: own})
    (tmp_path / "other").mkdir()
    if there:
        Tuned(tmp_path / "other/table.json").record(problem.arch, {problem.key: other})
    monkeypatch.setenv("TOPOCOMM_TUNED_DIR", str(tmp_path / "other"))
    monkeypatch.setattr(module, "TUNED", Tuned(module.TUNED.path))
    assert choose(problem) == (other if there else rule)


def test_a_directory_that_is_not_there(table, monkeypatch, tmp_path):
    module, problem, choose = table
    monkeypatch.setattr(module, "TUNED", Tuned(module.TUNED.path))
    monkeypatch.setenv("TOPOCOMM_TUNED_DIR", str(tmp_path / "none"))
    with pytest.raises(TopocommError, match=r"TOPOCOMM_TUNED_DIR=.*none: expected a directory"):
        choose(problem)


def test_candidates_are_each_listed_once(table):
    module, problem, _ = table
    found = list(module.candidates(problem))
    assert len(set(found)) == len(found) > 10


def test_problems_of_near_widths_share_a_key():
    few = decode_table.problem_of("sm_90", 2, 112, 1)
    assert few.key == DECODE.key == "16 bit, 128 wide, 16 rows, plain"
    assert decode_table.problem_of("sm_90", 2, 576, 128, form="full", shared=True).key == (
        "16 bit, 576 wide, 16 rows, full, shared"
    )
    assert PREFILL.key == "16 bit, 128 wide, many queries, plain"
    listed = prefill_table.problem_of("sm_90", 32, 300, q_len=3, form="lists")
    assert listed.key == "32 bit, 512 wide, few queries, lists"
