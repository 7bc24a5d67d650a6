"""The libraries' own sums: MPI's and gloo's, in real jobs, and a rank that does not come."""

import re
from pathlib import Path

import numpy as np
import pytest

from tests.execute.sum_cases import CASES, partials, repeats
from tests.mpi import mpirun
from tests.torch_jobs import torchrun
from topocomm.execute.transports.library_sums import library_sum
from topocomm.execute.transports.threads import World

PROGRAM = Path(__file__).parents[1] / "mpi_programs" / "sums.py"


def test_threads_have_no_library():
    assert library_sum(World(1).transports()[0], np.zeros(3), np.zeros(3), None, 8) is None


def repeated(ranks):
    return sum(repeats(*partials(name, ranks)) for name in CASES)


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.long)])
def test_mpi_adds_up(ranks):
    job = mpirun(ranks, [PROGRAM], timeout_s=100)
    assert job.returncode == 0, job.stderr[-3000:]
    assert sorted(job.stdout.split("\n"))[1:] == [f"rank {r}: mpi {repeated(ranks)}" for r in range(ranks)]


@pytest.mark.long
def test_gloo_adds_up():
    pytest.importorskip("torch.distributed")
    job = torchrun(2, [PROGRAM], timeout_s=100)
    assert job.returncode == 0, job.stderr[-3000:]
    assert sorted(job.stdout.split())[-2:] == [str(repeated(2))] * 2 or job.stdout.count(f"torch {repeated(2)}") == 2


@pytest.mark.parametrize(
    ("launch", "again"),
    [(mpirun, ["again"]), *(pytest.param(launch, [], marks=pytest.mark.long) for launch in (mpirun, torchrun))],
)
def test_a_rank_that_does_not_come_is_named(launch, again):
    if launch is torchrun:
        pytest.importorskip("torch.distributed")
    job = launch(2, [PROGRAM, "late", *again], timeout_s=100, env={"TOPOCOMM_TIMEOUT_S": "2.5"})
    expected = (
        r"rank 0: DeadlineError: rank 0: call \d+ \(sum for attention.logsumexp, out float32 \[3, 2\], "
        r"lse float32 \[3\]\): still waiting for rank 1"
    )
    assert re.search(expected, job.stdout), (job.stdout, job.stderr[-2000:])
