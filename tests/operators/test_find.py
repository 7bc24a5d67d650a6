"""Operators by entry-point name."""

import sys
from types import SimpleNamespace

import pytest

from topocomm import MAX, SUM, TOPK, OperatorError
from topocomm.operators.find import _own, find_operator


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


OWN = """
import helper
from topocomm import Field, Operator

TOTAL = Operator("total", (Field("x"),), lambda a, b: {"x": a["x"] + b["x"]}, {"x": helper.ZERO}, True)
OTHER = TOTAL
NUMBER = 7


def scaled(k):
    return TOTAL if k else None
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A file of the user's with operators, beside a module that it imports."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    monkeypatch.setattr("sys.modules", {**sys.modules})
    (tmp_path / "helper.py").write_text("ZERO = 0\n")
    (tmp_path / "mine_of_find.py").write_text(OWN)
    yield tmp_path
    _own.cache_clear()


def test_an_operator_of_ones_own_by_file_or_module(own):
    by_file = find_operator("mine_of_find.py:TOTAL")
    assert by_file.name == "total"
    assert find_operator("mine_of_find.py:TOTAL") is by_file, "loaded once"
    assert find_operator(f"{own}/mine_of_find.py:scaled(3)").name == "total"
    assert find_operator("mine_of_find:TOTAL").name == "total"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere.py:X", "operator 'nowhere.py:X': no file nowhere.py; expected FILE.py:NAME or package.module:NAME"),
        ("mine_of_find.py", "operator 'mine_of_find.py': expected FILE.py:NAME or package.module:NAME, the name of"),
        ("mine_of_find.py:", "operator 'mine_of_find.py:': expected FILE.py:NAME or package.module:NAME"),
        (
            "mine_of_find.py:TOTALL",
            "mine_of_find.py: nothing is named 'TOTALL' in it; its operators are TOTAL, OTHER",
        ),
        ("mine_of_find.py:NUMBER", "operator 'mine_of_find.py:NUMBER': NUMBER of mine_of_find.py is a int, not an Op"),
        ("mine_of_find.py:scaled", "operator 'mine_of_find.py:scaled' takes a number: mine_of_find.py:scaled(8)"),
        ("mine_of_find.py:TOTAL(3)", "operator 'mine_of_find.py:TOTAL' takes no number, got 'mine_of_find.py:TOTAL(3)"),
        ("bad.py:X", "bad.py: cannot be loaded: ZeroDivisionError: division by zero (line 2)"),
        ("ends.py:X", "ends.py: cannot be loaded: it exits; put what it runs as a program under `if __name__"),
        ("nowhere.module:X", "nowhere.module: cannot be loaded: ModuleNotFoundError: No module named 'nowhere'"),
    ],
)
def test_mistakes_in_the_place_of_ones_own_operator(own, name, message):
    (own / "bad.py").write_text("ZERO = 0\n1 / ZERO\n")
    (own / "ends.py").write_text("import sys\nsys.exit(3)\n")
    with pytest.raises(OperatorError) as error:
        find_operator(name)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_built_in_operator_is_not_replaced_by_that_of_another_package(monkeypatch):
    def entry(package, name, value):
        return SimpleNamespace(
            name=name, value=value, dist=SimpleNamespace(name=package), load=lambda: {"a": SUM, "b": MAX}[value]
        )

    entries = [entry("topocomm", "sum", "a"), entry("fast-sums", "sum", "b"), *(entry(p, "mine", p) for p in "ab")]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: entries)
    with pytest.warns(UserWarning, match="operator 'sum' is topocomm's own; package fast-sums registers that name"):
        assert find_operator("sum") is SUM
    with pytest.raises(OperatorError, match="operator 'mine' is registered by several packages, a, b; say which: a or"):
        find_operator("mine")
