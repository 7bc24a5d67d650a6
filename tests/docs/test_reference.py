"""The reference has every public name, variable, schema and word of output, and no message that nothing says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import attention
import topocomm

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs/reference"
SOURCES = "\n".join(
    path.read_text() for package in ("topocomm", "attention") for path in (ROOT / package).rglob("*.py")
)
TABLES = {
    "plan": ["plan", "--system", "dgx-h100", "--sizes", "1KiB:8KiB:8"],
    "compare": ["simulate", "--system", "dgx-h100", "--bytes", "1KiB", "--compare", "planned,ring"],
    "step": ["simulate", "--system", "dgx-h100", "--model", "llama-3.1-8b", "--context", "1M"],
    "sweep": ["simulate", "--system", "dgx-h100", "--sweep", "hosts=1,2", "--bytes", "1KiB"],
    "matrix": ["inspect", "--system", "dgx-h100", "--format", "matrix"],
    "measure": ["inspect", "--measure"],
    "bench": ["bench", "--ranks", "2", "--sizes", "8"],
    "wide bench": ["bench", "--ranks", "2", "--sizes", "8"],
}
"""Commands that print tables."""
HEADING = {
    "plan": r"^ *bytes +algorithm .*",
    "compare": r"^algorithm .*",
    "step": r"^method .*",
    "sweep": r"^hosts .*",
    "matrix": r"CPU Affinity.*",
    "measure": r"^pair .*",
    "bench": r"^# +(size .*)",
    "wide bench": r"^# +(size .*)",
}
OF_A_CASE = {"planned"}
"""Headings that are values of the command line """


def terms():
    """The words that the glossary explains."""
    cells = re.findall(r"^\| ([^|]+) \|", (REFERENCE / "glossary.md").read_text(), re.MULTILINE)
    return {term for cell in cells for term in re.split(r", (?![^(]*\))", cell)} | OF_A_CASE


def printed(words, columns="80"):
    """What a command prints."""
    command = [sys.executable, "-m", "topocomm", *words]
    return subprocess.run(
        command, env={**os.environ, "COLUMNS": columns}, stdout=subprocess.PIPE, text=True, timeout=120, check=True
    ).stdout


@pytest.mark.parametrize("module", [topocomm, attention], ids=lambda module: module.__name__)
def test_all_public_names_are_described_once(module):
    page = (REFERENCE / f"api-{module.__name__}.md").read_text()
    assert sorted(re.findall(r"^\.\. (?:auto\w+|data):: (\w+)", page, re.MULTILINE)) == sorted(module.__all__)


def test_all_variables_are_in_the_settings():
    page = (ROOT / "docs/guide/settings.md").read_text()
    assert set(re.findall(r"\bTOPOCOMM_[A-Z_]+[A-Z]\b", SOURCES)) == set(
        re.findall(r"^\| `(TOPOCOMM_\w+)`", page, re.M)
    )


def test_all_schemas_are_in_the_formats():
    page = (REFERENCE / "formats.md").read_text()
    names = set(re.findall(r"\"(topocomm\.[a-z-]+/\d+)\"", SOURCES))
    assert names
    assert names <= set(re.findall(r"`(topocomm\.[a-z-]+/\d+)`", page))


def test_messages_that_are_explained_are_said_somewhere():
    rows = re.findall(r"^\| `([^`]+)` \| [^|]+ \| [^|]+ \|$", (REFERENCE / "errors.md").read_text(), re.MULTILINE)
    joined = re.sub(r"\"\s+f?\"", "", SOURCES)
    assert len(rows) > 10
    assert [row for row in rows if row not in joined] == []


@pytest.mark.parametrize("name", TABLES)
def test_headings_of_tables_are_in_the_glossary(name):
    found = re.search(HEADING[name], printed(TABLES[name], "250" if name.startswith("wide") else "80"), re.MULTILINE)
    rest = found[found.lastindex or 0]
    for term in sorted(terms(), key=len, reverse=True):
        rest = re.sub(rf"(?<!\S){re.escape(term)}(?!\S)", " ", rest)
    assert rest.split() == []


def test_lines_of_a_plan_are_in_the_glossary():
    text = printed(["plan", "--system", "dgx-h100", "--hosts", "2", "--bytes", "16512", "--without", "h0/NIC3"])
    labels = set(re.findall(r"^  ([a-z]+) ", text, re.MULTILINE))
    assert len(labels) > 10
    assert labels - terms() == set()
