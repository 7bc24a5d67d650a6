"""tools/bench/sequence.py: a row for the ring and for heads with rings of every size, which agree with it."""

import re
from pathlib import Path

import pytest

from tests.mpi import mpirun

pytest.importorskip("torch")
TOOL = Path(__file__).parents[2] / "tools/bench/sequence.py"
ROW = re.compile(r"^ +(90) (.{20}) +([\d.]+) +([\d.]+) +([\d.]+)$", re.MULTILINE)


@pytest.mark.long
def test_every_way_has_a_row():
    job = mpirun(4, ["-m", "mpi4py", TOOL, "--lengths=90", "--repeats=1", "--heads=6"], timeout_s=120.0)
    assert job.returncode == 0, job.stdout + job.stderr[-3000:]
    rows = ROW.findall(job.stdout)
    assert [row[1].rstrip() for row in rows] == ["ring", "heads", "heads, rings of 2"]
    assert all(float(figure) > 0 for row in rows for figure in row[2:4])
