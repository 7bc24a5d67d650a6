"""What packages have the doctor say, found by entry points."""

from importlib.metadata import EntryPoint
from types import SimpleNamespace

import pytest

from topocomm.cli.main import main
from topocomm.doctor import registered_checks as registered
from topocomm.doctor.anonymous import Anonymous
from topocomm.doctor.report import report_text, section_text


@pytest.fixture
def packages(monkeypatch):
    """Packages that have registered modules; a module that raises has an exception in its place."""

    def install(**modules):
        def load(self):
            module = modules[self.name]
            if isinstance(module, Exception):
                raise module
            return module

        monkeypatch.setattr(EntryPoint, "load", load)
        entries = [EntryPoint(name, f"{name}.doctor", registered.GROUP) for name in reversed(modules)]
        monkeypatch.setattr(registered, "entry_points", lambda group: entries if group == registered.GROUP else [])

    return install


def test_sections_by_name(packages):
    one, two = (SimpleNamespace(sections=lambda title=title: [(title, ["said"])]) for title in ("One", "Two"))
    packages(a=one, b=two)
    assert registered.registered_sections() == [("One", ["said"]), ("Two", ["said"])]


@pytest.mark.parametrize(
    "error", [ModuleNotFoundError("No module named 'x'"), OSError("libcuda.so.1"), RuntimeError("no driver")]
)
def test_what_cannot_speak_is_said(packages, error):
    packages(a=error, b=SimpleNamespace(sections=lambda: [("Two", ["said"])]), c=SimpleNamespace())
    broken, two, without = registered.registered_sections()
    assert broken == ("a", [f"a.doctor has nothing to say: {type(error).__name__}: {error}"])
    assert two == ("Two", ["said"]) and "AttributeError" in without[1][0]


def test_lines_are_cut():
    text = section_text("Title", ["  begin " + "word " * 40])
    first, second, *rest = text.splitlines()
    assert (first, second) == ("", "Title") and len(rest) == 3
    assert rest[0].startswith("  begin") and all(line.startswith("      word") for line in rest[1:])


def test_it_is_printed_below_the_findings(packages, capsys, monkeypatch):
    monkeypatch.setenv("HOME", "/home/somebody")
    packages(a=SimpleNamespace(sections=lambda: [("My section", ["  told of /home/somebody/x"])]))
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert out.endswith("\nMy section\n  told of /home/somebody/x\n")
    assert main(["doctor", "--report"]) == 0
    report = capsys.readouterr().out
    assert "My section\n  told of ~" in report and "somebody" not in report
    assert main(["doctor", "--system", "dgx-h100"]) == 0  # a machine that is given: not this one's
    assert "My section" not in capsys.readouterr().out


def test_a_report_without_sections():
    assert "My section" not in report_text([], None, Anonymous({}))
