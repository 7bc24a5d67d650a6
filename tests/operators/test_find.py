"""Operators by entry-point name."""

import pytest

from topocomm import SUM, OperatorError
from topocomm.operators.find import find_operator


def test_names_of_the_packages_installed():
    assert find_operator("sum") is SUM
    assert find_operator("attention.logsumexp").default_layout(32).row_bytes == 516


def test_unknown_names_list_the_known():
    with pytest.raises(OperatorError, match=r"unknown operator 'avg'; installed packages register .*max, min, sum"):
        find_operator("avg")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("topocomm.nowhere:X", "cannot load topocomm.nowhere:X: No module named"),
        ("topocomm.operators.builtin:VALUE", "is a str, not an Operator"),
    ],
)
def test_broken_registrations_are_named(monkeypatch, value, message):
    from importlib.metadata import EntryPoint

    monkeypatch.setattr("topocomm.operators.find.entry_points", lambda group: [EntryPoint("mine", value, group)])
    with pytest.raises(OperatorError, match=message):
        find_operator("mine")
