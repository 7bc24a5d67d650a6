"""Programs of tools/gpu run on the CPU in the card's place, and what they leave."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
TOOLS = ROOT / "tools/gpu"
STAND_IN = ROOT / "tests/tools/gpu/stand_in.py"
PYTHON = f"{sys.executable} {STAND_IN}"


def run(out, *words, timeout=280, **environment):
    """(status, what it printed) of a program of its own process."""
    command = [sys.executable, str(STAND_IN), str(TOOLS / words[0]), str(out), *words[1:]]
    return finished(command, timeout, environment)


def run_all(out, parts, call="1", timeout=280, python=PYTHON, **environment):
    """(status, what it printed) of a call of run.sh; with its own parts where none are given."""
    environment = {"PYTHON": python, **({"PARTS": parts} if parts else {}), **environment}
    return finished(["bash", str(TOOLS / "run.sh"), str(out), call], timeout, environment)


def finished(command, timeout, more):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TRITON", "NCCL", "RUN_CALL"))}
    environment = {**kept, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **more}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=timeout, check=False, cwd=ROOT
    )
    return done.returncode, done.stdout + done.stderr


def parts_of(out):
    """What the files of results hold."""
    return {
        name: part for file in sorted(out.glob("results*.json")) for name, part in json.loads(file.read_text()).items()
    }


def wrong(part):
    """The checks of a part that failed, in words."""
    return [f"{check['name']}: {check['wrong']}" for check in part["checks"] if check["wrong"]]


def table(part, title):
    """The rows of a table as dicts, found by the beginning of its title."""
    block = next(block for block in part["blocks"] if block.get("title", "").startswith(title))
    return [dict(zip(block["head"], row, strict=True)) for row in block["rows"]]


def number(cell):
    """The median of a cell."""
    return float(cell.split()[0].replace(",", ""))


class Nothing:
    """Results that are not wanted."""

    def __getattr__(self, name):
        return lambda *_, **__: None
