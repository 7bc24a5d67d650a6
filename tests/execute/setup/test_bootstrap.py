"""topocomm.init under real launchers and under environments that are not what they seem."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.mpi import mpirun
from tests.torch_jobs import ROOT, environment, torchrun
from topocomm.execute.setup import bootstrap

PROGRAM = Path(__file__).parents[1] / "launch_programs" / "init.py"
MPI_VARIABLES = {"PYTHONPATH": str(ROOT)}


def alone(args, **env):
    """A process without a launcher."""
    command = [sys.executable, *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment(**env), check=False)


def test_under_mpirun():
    job = mpirun(3, [PROGRAM], timeout_s=60, env=MPI_VARIABLES)
    assert job.stdout == "mpi, 3 ranks; helper: threads, 1 ranks\n", job.stderr[-2000:]
    assert job.returncode == 0


@pytest.mark.long
def test_under_mpirun_without_the_compiled_part_ranks_exchange_messages():
    code = (
        "import runpy, sys; sys.modules['topocomm.native._native'] = None; "
        f"comm = runpy.run_path({str(PROGRAM)!r})['comm']; assert len(set(comm.session.transport.hosts)) == comm.size"
    )
    job = mpirun(2, ["-c", code], timeout_s=60, env=MPI_VARIABLES)
    assert job.stdout == "mpi, 2 ranks; helper: threads, 1 ranks\n", job.stderr[-2000:]
    assert job.returncode == 0


@pytest.mark.long
def test_under_torchrun():
    pytest.importorskip("torch")
    job = torchrun(3, [PROGRAM], env={"RANK": "0", "WORLD_SIZE": "2"})  # torchrun itself may be one of several
    assert job.stdout == "torch, 3 ranks; helper: threads, 1 ranks\n", job.stderr[-2000:]
    assert job.returncode == 0


def test_alone():
    job = alone([PROGRAM])
    assert job.stdout == "threads, 1 ranks; helper: threads, 1 ranks\n", job.stderr[-2000:]
    assert job.returncode == 0


INIT = "import topocomm; topocomm.init()"
FROM_MPI = "from mpi4py import MPI; import topocomm; topocomm.Communicator.from_mpi(MPI.COMM_WORLD)"


def library():
    """The first line of what the MPI library here says of itself, asked in another process: asking loads it."""
    return alone(["-m", "mpi4py", "-c", "from mpi4py import MPI; print(MPI.Get_library_version())"]).stdout.split(",")[
        0
    ]


@pytest.mark.parametrize("code", [INIT, FROM_MPI], ids=["init", "from_mpi"])
def test_srun_without_mpi_support_is_told(code):
    """srun started four tasks, and MPI makes four worlds of one rank."""
    pytest.importorskip("mpi4py")
    job = alone(["-c", code], SLURM_PROCID="2", SLURM_STEP_NUM_TASKS="4")
    assert job.returncode != 0
    error = job.stderr.strip().splitlines()[-1]
    for part in (
        "TopocommError: rank 2: srun started 4 ranks (SLURM_STEP_NUM_TASKS=4), but the MPI library",
        "sees 1 rank",
        "srun --mpi=",
        "torchrun once per node",
        "To run alone on purpose, unset SLURM_STEP_NUM_TASKS",
    ):
        assert part in error, error


@pytest.mark.long
def test_two_mpis_mixed_are_told():
    """The launcher of one MPI with the library of another one."""
    pytest.importorskip("mpi4py")
    here = library()
    if here.startswith("Open MPI"):
        name, variables = "mpiexec", {"PMI_RANK": "1", "PMI_SIZE": "3"}
    else:
        name, variables = "Open MPI's mpirun", {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "3"}
    job = alone(["-c", INIT], **variables)
    assert job.returncode != 0
    error = job.stderr.strip().splitlines()[-1]
    loaded = " ".join(here.splitlines()[0].split())
    for part in (f"rank 1: {name} started 3 ranks", loaded, "MPI4PY_LIBMPI=", "module load"):
        assert part in error, error


TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "7",
    "RANK": "1",
    "WORLD_SIZE": "4",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29400",
}
BY_HAND = {name: value for name, value in TORCHRUN.items() if name != "TORCHELASTIC_RUN_ID"}


@pytest.mark.long
@pytest.mark.alone
def test_ranks_that_do_not_meet_are_told():
    pytest.importorskip("torch")
    job = alone(["-c", INIT], **BY_HAND | {"MASTER_PORT": "9", "TOPOCOMM_TIMEOUT_S": "1"})
    assert job.returncode != 0
    error = job.stderr.strip().splitlines()[-1]
    assert "DeadlineError: rank 1: RANK and MASTER_ADDR started 4 ranks, which do not meet at MASTER_ADDR" in error
    assert "within 1 s (limit: TOPOCOMM_TIMEOUT_S)" in error


def test_a_job_with_ranks_gone_is_ended_all_the_same(monkeypatch):
    class Gone(Exception):
        pass

    def gone():
        raise Gone

    ended = []
    world = SimpleNamespace(Iprobe=gone, Abort=ended.append)
    library = SimpleNamespace(Exception=Gone, COMM_WORLD=world, Is_finalized=lambda: False)
    monkeypatch.setattr(bootstrap, "load_mpi", lambda: library)
    monkeypatch.setattr(bootstrap, "tell_shown", lambda error: None)
    monkeypatch.setattr(bootstrap, "LAST_WORDS_S", 0.01)
    bootstrap._abort(ValueError("of the user's program"))
    assert ended == [1]
