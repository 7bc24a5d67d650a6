from pathlib import Path

import pytest

from tests.mpi import mpirun

PROGRAM = Path(__file__).parent / "mpi_programs" / "sharded.py"


@pytest.mark.parametrize("ranks", [1, 3])
def test_all_methods_over_an_mpi4py_communicator(ranks):
    job = mpirun(ranks, ["-m", "mpi4py", PROGRAM])
    assert job.returncode == 0, job.stderr
    assert job.stdout == "worst error below 1e-5: True\n"
