"""Another distribution's `attention` in place of ours is named, with the remedy."""

import sys
import types

import pytest

from attention import __main__ as program
from attention.__main__ import main


@pytest.fixture
def foreign(monkeypatch):
    module = types.ModuleType("attention")
    module.__file__ = "/site-packages/attention/__init__.py"
    monkeypatch.setitem(sys.modules, "attention", module)
    return module


def test_ours_is_not_shadowed():
    assert program.why_shadowed() is None


@pytest.mark.parametrize(
    ("owners", "parts"),
    [
        (
            {"attention": ["attention", "topocomm"]},
            ["distribution 'attention'", "pip uninstall attention topocomm,"],
        ),
        (
            {"attention": ["topocomm", "other-one"]},
            ["distribution 'other-one'", "pip uninstall other-one topocomm,"],
        ),
        ({}, ["another package has overwritten it", "pip uninstall attention topocomm,"]),
    ],
)
def test_a_foreign_package_is_named(foreign, monkeypatch, capsys, owners, parts):
    monkeypatch.setattr(program, "packages_distributions", lambda: owners)
    assert main(["generate", "--model=smollm2", "--prompt=a"]) == 1
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    for part in ["/site-packages/attention/__init__.py is not topocomm's", "then install topocomm again", *parts]:
        assert part in line
