"""Operators by entry-point name."""

import pytest

from topocomm import SUM, TOPK, OperatorError
from topocomm.operators.find import find_operator


def test_names_of_the_packages_installed():
    assert find_operator("sum") is SUM
    assert find_operator("attention.logsumexp").default_layout(32).row_bytes == 516


def test_unknown_names_list_the_known():
    with pytest.raises(OperatorError, match=r"unknown operator 'avg'; installed packages register .*max, min, .*sum"):
        find_operator("avg")


def register(monkeypatch, name, value):
    from importlib.metadata import EntryPoint

    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [EntryPoint(name, value, group)])


def test_a_function_of_a_number_gives_an_operator_by_name(monkeypatch):
    register(monkeypatch, "topk", "topocomm.operators.builtin:TOPK")
    assert find_operator("topk(8)") is TOPK(8)
    with pytest.raises(OperatorError, match=r"operator 'topk' takes a number: topk\(8\)"):
        find_operator("topk")
    with pytest.raises(OperatorError, match="TOPK: k must be 1 or more, got 0"):
        find_operator("topk(0)")
    register(monkeypatch, "sum", "topocomm.operators.builtin:SUM")
    with pytest.raises(OperatorError, match=r"operator 'sum' takes no number, got 'sum\(3\)'"):
        find_operator("sum(3)")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("topocomm.nowhere:X", "cannot load topocomm.nowhere:X: No module named"),
        ("topocomm.operators.builtin:VALUE", "is a str, not an Operator"),
    ],
)
def test_broken_registrations_are_named(monkeypatch, value, message):
    register(monkeypatch, "mine", value)
    with pytest.raises(OperatorError, match=message):
        find_operator("mine")
