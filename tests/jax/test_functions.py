"""Collectives of JAX arrays in jobs: results on every rank, and errors that name the ranks."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("jax", reason="needs jax: make test-jax")

from tests.mpi import mpirun
from tests.torch_jobs import by_hand, said, torchrun
from topocomm import SUM, TopocommError, run_local
from topocomm.jax import allreduce

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "programs"
LONG = pytest.mark.long
NEEDS_TORCH = pytest.mark.skipif(find_spec("torch") is None, reason="needs torch")


@pytest.mark.parametrize(
    ("ranks", "arguments"),
    [
        (2, []),
        (2, ["--x64", "dtypes_and_operators", "pytrees_and_shapes"]),
        *(pytest.param(ranks, some, marks=LONG) for ranks in (1, 3, 4) for some in ([], ["--x64"])),
    ],
)
def test_every_case_in_a_job_without_torch(ranks, arguments):
    job = mpirun(
        ranks, [PROGRAMS / "collectives.py", "--mpi", *arguments], env={"PYTHONPATH": str(ROOT)}, timeout_s=250
    )
    assert job.returncode == 0, job.stderr[-3000:]
    assert said(job.stdout) == dict.fromkeys(range(ranks), "ok")


@LONG
@NEEDS_TORCH
def test_every_case_under_torchrun():
    job = torchrun(2, [PROGRAMS / "collectives.py"], timeout_s=250)
    assert job.returncode == 0, job.stderr[-3000:]
    assert said(job.stdout) == dict.fromkeys(range(2), "ok")


CASES = {  # by case: the ranks that must be told, and what
    "shapes_differ": ([0, 1, 2], r"JaxRuntimeError: MismatchError: .*ranks 0, 2: float32 \[3\]; rank 1: float32"),
    "operators_differ": ([0, 1, 2], r"JaxRuntimeError: MismatchError: .*operator \(ranks 0, 2: sum; rank 1: max\)"),
    "shapes_differ_outside": ([0, 1, 2], r"MismatchError: rank \d: ranks disagree"),
    "rows_differ": ([0, 2], r"JaxRuntimeError: MismatchError: rank \d: topocomm.jax.allgather: expected [39] rows"),
    "combine_fails": ([1], r"JaxRuntimeError: SystemError: out of paper"),
    "nobody_looks": ([0, 1, 2], r"JaxRuntimeError: MismatchError: .*rank 1: float32 \[4\]"),
    "closed": ([0, 1, 2], r"JaxRuntimeError: TopocommError: rank \d: this communicator takes no call now"),
    "one_is_late": ([0, 2], r"JaxRuntimeError: DeadlineError: .*waiting for rank 1 \(16 bytes from it\) after 2 s"),
}


def test_every_rank_is_told_what_is_wrong():
    env = {"PYTHONPATH": str(ROOT), "TOPOCOMM_TIMEOUT_S": "2"}
    job = mpirun(3, [PROGRAMS / "errors.py", *CASES], env=env, timeout_s=200)
    assert job.returncode == 0, job.stderr[-3000:]
    told = {
        (name, int(rank)): text for rank, name, text in re.findall(r"^\[(\d)\] (\w+): (.*)$", job.stdout, re.MULTILINE)
    }
    for name, (ranks, pattern) in CASES.items():
        for rank in ranks:
            assert re.match(pattern, told.get((name, rank), "nothing")), (name, rank, told.get((name, rank)))


@LONG
@NEEDS_TORCH
def test_a_rank_that_dies_is_named():
    jobs = by_hand(3, [PROGRAMS / "errors.py", "one_dies"], timeout_s=120)
    assert [status for _, _, status in jobs] == [0, 7, 0], jobs
    for rank in (0, 2):
        assert re.search(
            rf"^\[{rank}\] one_dies: JaxRuntimeError: RankFailedError: .*rank 1", jobs[rank][0], re.MULTILINE
        )


def test_threads_are_refused():
    with pytest.raises(TopocommError, match=r"ranks are processes here.*start with mpirun, srun or torchrun"):
        run_local(lambda comm: allreduce(1.0, SUM, comm), ranks=2)
