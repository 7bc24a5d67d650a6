"""tools/bench/prefill.py: a row for every case, each of which agrees with torch."""

import os
import re
import sys
from pathlib import Path

import pytest

from tests.mpi import ENVIRONMENT, finished

pytest.importorskip("torch")
TOOL = Path(__file__).parents[2] / "tools/bench/prefill.py"
ROW = re.compile(r"^(9/3 x 64|32/8 x 128) +(70) (.{30}) +([\d.]+) +([\d.]+) +[\d.]+ +[\d.]+$", re.MULTILINE)


@pytest.mark.long
def test_every_case_has_a_row():
    command = [sys.executable, str(TOOL), "--lengths=70", "--repeats=1", "--dtype=bfloat16"]
    done = finished(command, {**os.environ, **ENVIRONMENT}, 60.0)
    assert done.returncode == 0, done.stderr[-3000:]
    rows = ROW.findall(done.stdout)
    assert [row[0] for row in rows] == ["9/3 x 64"] * 6 + ["32/8 x 128"] * 6
    assert len({row[2] for row in rows}) == 6 and all(float(row[3]) > 0 and float(row[4]) > 0 for row in rows)
