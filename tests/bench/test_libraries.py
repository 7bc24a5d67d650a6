"""The libraries that we compare with are called rightly."""

from pathlib import Path

import pytest

from tests.mpi import mpirun

pytest.importorskip("torch")
PROGRAM = Path(__file__).parent / "mpi_programs/libraries.py"


@pytest.mark.long
def test_every_call_of_mpi_and_torch(tmp_path):
    job = mpirun(3, [PROGRAM, tmp_path / "store"], env={"PYTHONPATH": str(Path(__file__).parents[2])})
    assert job.returncode == 0, job.stderr[-3000:]
    assert job.stdout.splitlines() == ["MPI: 41 calls right", "gloo: 21 calls right"]
