"""Every tutorial runs from an empty folder, block by block, as a reader would copy it.

"Save this as `NAME`:" before a block makes it a file. A `sh` block is run; a `text` block right after it is what it
prints, where `...` stands for anything. `<!-- not run: REASON -->` before a block leaves it out.
"""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.mpi import ENVIRONMENT

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs/tutorials").glob("*.md"))
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAME = re.compile(r"\b[Ss]ave (?:this|it) as `([\w.-]+)`[^`]*:\s*$")
NOT_RUN = re.compile(r"<!-- not run: needs (a GPU|Slurm|vLLM|the network)[^>]*-->\s*$")
LIMIT_S = 240


class Block(NamedTuple):
    """A fenced block: language, text, and the prose before it."""

    language: str
    text: str
    before: str


def blocks(page):
    """The blocks of a page, in order."""
    text, found, end = page.read_text(), [], 0
    for match in FENCE.finditer(text):
        found.append(Block(match[1], match[2], text[end : match.start()]))
        end = match.end()
    return found


def run(script, folder):
    """What a block prints; it ends with its children when it takes too long."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, **ENVIRONMENT, "PATH": path, "COLUMNS": "80"}
    environment.pop("PYTHONPATH", None)
    with subprocess.Popen(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            stdout, stderr = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    assert process.returncode == 0, f"status {process.returncode} of\n{script}\n{stdout[-2000:]}\n{stderr[-3000:]}"
    return stdout


def is_like(shown, printed):
    """Whether an output is the one shown, in which `...` stands for anything; spaces at ends of lines do not count."""
    lines = [re.escape(line.rstrip()).replace(r"\.\.\.", ".*") for line in shown.splitlines()]
    pattern = "\n".join(lines).replace("\n.*\n", "\n(?s:.*\n)?")
    pattern = re.sub(r"\n\.\*$", "(?s:\n.*)?", pattern)
    return re.fullmatch(pattern, "\n".join(line.rstrip() for line in printed.splitlines())) is not None


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_tutorial_runs_from_an_empty_folder(page, tmp_path):
    printed = None
    for block in blocks(page):
        name = NAME.search(block.before)
        if NOT_RUN.search(block.before):
            printed = None
        elif name:
            (tmp_path / name[1]).write_text(block.text)
        elif block.language == "sh":
            printed = run(block.text, tmp_path)
        else:
            assert block.language == "text", f"a block of {page.name} is neither a file nor run:\n{block.text}"
            if printed is not None:
                assert is_like(block.text, printed), (
                    f"{page.name} shows\n{block.text}where its command prints\n{printed}"
                )


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("a\nb\n", "a\nb\n", True),
        ("a\n...\nd\n", "a\nb\nc\nd\n", True),
        ("a\n...\n", "a\nb\nc\n", True),
        ("a ... c\n", "a 1.25 c\n", True),
        ("a ... c\n", "a b\nc\n", False),
        ("a\n...\nd\n", "a\nb\nc\n", False),
        ("a\n", "a\nb\n", False),
    ],
)
def test_outputs_are_compared(shown, printed, same):
    assert is_like(shown, printed) is same


def test_blocks_that_are_not_run_say_why():
    marks = [mark for page in PAGES for mark in re.findall(r"<!-- not run.*?-->", page.read_text(), re.DOTALL)]
    assert marks
    assert all(NOT_RUN.search(mark) for mark in marks), marks
