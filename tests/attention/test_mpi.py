from functools import cache
from pathlib import Path

import pytest

from tests.mpi import mpirun

PROGRAM = Path(__file__).parent / "mpi_programs" / "sharded.py"


@pytest.mark.parametrize("ranks", [1, 3])
def test_all_methods_over_an_mpi4py_communicator(ranks):
    job = mpirun(ranks, ["-m", "mpi4py", PROGRAM])
    assert job.returncode == 0, job.stderr
    assert job.stdout == "worst error below 1e-5: True\n"


WAYS = Path(__file__).parent / "mpi_programs" / "tree_ways.py"


@cache
def digest_alone():
    """What one rank prints: the bits of canonical order."""
    job = mpirun(1, ["-m", "mpi4py", WAYS])
    assert job.returncode == 0, job.stderr
    return job.stdout


@pytest.mark.parametrize("ranks", [2, *(pytest.param(ranks, marks=pytest.mark.long) for ranks in (3, 4, 8))])
def test_every_way_of_tree_decode_and_the_same_canonical_bits(ranks):
    job = mpirun(ranks, ["-m", "mpi4py", WAYS])
    assert job.returncode == 0, job.stderr
    assert len(job.stdout) == 65 and job.stdout == digest_alone()
