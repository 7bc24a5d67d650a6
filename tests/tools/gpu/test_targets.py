"""The table of targets: what fills it, what passes, and that the page has its rows."""

import pytest

from tests.tools.gpu.running import ROOT

UNMEASURED = "not yet measured"
PAGE = ROOT / "docs/results/on-a-gpu.md"


def part(*goals, tables=None):
    return {"tables": tables, "data": {"goals": [list(goal) for goal in goals]}}


def test_the_page_has_these_rows(tools):
    """What a day with a card fills in: the rows of results.md take the place of the page's."""
    rows = tools.targets.rows({})
    assert len(rows) >= 10 and all(row[2:] == (UNMEASURED, "") for row in rows)
    page = [line.strip("| ").split(" | ") for line in PAGE.read_text().splitlines()]
    at = page.index(["what", "target", "reached"])
    assert [tuple(cells[:2]) for cells in page[at + 2 : at + 2 + len(rows)]] == [row[:2] for row in rows]
    assert {cells[3] for cells in page[at + 2 : at + 2 + len(rows)]} <= {tools.targets.PASS, tools.targets.MISS}


def test_every_row_is_filled_by_a_goal_of_its_key(tools):
    targets = tools.targets
    assert len({target.key for target in targets.TARGETS}) == len(targets.TARGETS)
    for place, target in enumerate(targets.TARGETS):
        found = targets.rows({"a": part(("x", "y", "3 of 3", "yes", target.key), ("z", "-", "7", "yes", ""))})
        assert found[place] == (target.what, target.target, "3 of 3", "pass")
        assert all(row[2] == UNMEASURED for row in found[:place] + found[place + 1 :])


@pytest.mark.parametrize(
    ("rules", "tuned", "reached", "mark"),
    [
        ("yes", "yes", "by the rules: 70%; with the tables just tuned: 81%", "pass"),
        ("no", "yes", "by the rules: 70%; with the tables just tuned: 81%", "pass"),
        ("yes", "no", "by the rules: 70%; with the tables just tuned: 81%", "MISS"),
        ("no", None, "by the rules: 70%", "MISS"),
        ("yes", UNMEASURED, "by the rules: 70%", "pass"),
    ],
)
def test_rules_and_tuned_tables_share_a_row(tools, rules, tuned, reached, mark):
    parts = {"a": part(("x", ">= 80%", "70%", rules, "read 1"), tables="by the rules")}
    if tuned is not None:
        parts["b"] = part(("x", ">= 80%", "81%", tuned, "read 1"), tables="with the tables just tuned")
    assert [row[2:] for row in tools.targets.rows(parts) if row[2] != UNMEASURED] == [(reached, mark)]


@pytest.mark.parametrize(
    ("rules", "tuned", "mark"), [("yes", "yes", "pass"), ("no", "yes", "MISS"), ("yes", "no", "MISS")]
)
def test_results_are_right_by_both(tools, rules, tuned, mark):
    parts = {name: part(("x", "all", "1 of 2", met, "checks")) for name, met in (("a", rules), ("b", tuned))}
    assert [row[3] for row in tools.targets.rows(parts) if row[2] != UNMEASURED] == [mark]
