"""Every collective under a real mpirun."""

from pathlib import Path

import pytest

from tests.mpi import mpirun

pytest.importorskip("torch")  # in the processes that are started

PROGRAM = Path(__file__).parent / "mpi_programs" / "collectives.py"
ROOT = str(Path(__file__).parents[2])
LONG = [pytest.param(ranks, marks=pytest.mark.long) for ranks in (1, 3, 4, 8)]


@pytest.mark.parametrize("ranks", [2, *LONG])
def test_collectives(ranks):
    job = mpirun(ranks, [PROGRAM], timeout_s=280.0, env={"PYTHONPATH": ROOT})
    assert job.returncode == 0, job.stderr[-3000:]
    assert job.stdout.strip() == f"collectives: {ranks} ranks ok"
