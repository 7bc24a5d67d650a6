"""Reference pages as they are read from parsers, error classes and schema files."""

import argparse

import pytest

from tools.pages import reference_text
from topocomm import errors
from topocomm.cli.main import COMMANDS


@pytest.fixture
def parser():
    """A parser with options of all kinds."""
    parser = argparse.ArgumentParser(prog="tool look", description="look at a thing")
    parser.add_argument("--input", nargs="+", metavar="FILE", help="what to read; goes with --quick, see `tool --help`")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="default %(default)s")
    parser.add_argument("--ranks", metavar="N|NAMES", help="the first N, or these")
    parser.add_argument("--quick", "-q", action="store_true", help="100%% faster")
    parser.add_argument("--secret", help=argparse.SUPPRESS)
    parser.add_argument("place")
    return parser


def test_a_command_is_its_description_and_a_row_for_each_option(parser):
    lines = "\n".join(reference_text.command_section(parser)).splitlines()
    assert lines[:3] == ["## tool look", "", "Look at a thing."]
    assert [line for line in lines[3:] if line] == [
        "| option | does |",
        "| --- | --- |",
        "| `--input FILE ...` | what to read; goes with `--quick`, see `tool --help` |",
        "| `--format FORMAT` | `text`, `json`; default text |",
        "| `--ranks N\\|NAMES` | the first N, or these |",
        "| `--quick, -q` | 100% faster |",
        "| `PLACE` |  |",
    ]


def test_commands_of_a_command_are_sections_below_it():
    parser = argparse.ArgumentParser(prog="tool")
    parser.add_subparsers().add_parser("inner", description="Do it.").add_argument("--hard", action="store_true")
    text = "\n".join(reference_text.command_section(parser))
    assert "### tool inner\n\nDo it.\n" in text
    assert "`--hard`" in text


def test_all_commands_and_jobs_are_there():
    commands = reference_text.commands_page()
    assert [f"## topocomm {name}\n" in commands for name in COMMANDS] == [True] * len(COMMANDS)
    assert "| `--what-if LINK=GBPS` |" in commands
    jobs = reference_text.jobs_page()
    assert all(f"## python -m attention {name}\n" in jobs for name in ("generate", "serve", "decode"))


def test_every_error_has_a_row_with_its_exit_status():
    rows = {row.split("`")[1]: row for row in reference_text.errors_page().splitlines()[2:]}
    assert set(rows) == {name for name in vars(errors) if name.endswith("Error")} - {"TopocommError"}
    assert rows["PlanError"].startswith("| `PlanError` | `ValueError` | A plan or schedule is invalid")
    assert rows["PlanError"].endswith("| 2 |")
    assert rows["DeadlineError"].endswith("| 1 |")


def test_schemas_are_those_of_the_folder(tmp_path, monkeypatch):
    (tmp_path / "plan.json").write_text("{}")
    monkeypatch.setattr(reference_text, "SCHEMAS", tmp_path)
    assert reference_text.schemas_page().endswith("printed by\n\n- `topocomm schema plan`\n")
    monkeypatch.setattr(reference_text, "SCHEMAS", tmp_path / "none")
    assert reference_text.schemas_page() == ""


def test_a_page_that_has_not_changed_is_not_written_again(tmp_path):
    reference_text.write_pages(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert {path.stem for path in before} == {"commands", "jobs", "errors", "schemas"}
    (tmp_path / "errors.md").write_text("old")
    reference_text.write_pages(tmp_path)
    changed = [path.stem for path, time in before.items() if path.stat().st_mtime_ns != time]
    assert changed == ["errors"]
