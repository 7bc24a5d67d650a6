"""Device memory by MPI: what the library says, what is tried before it is believed, and the calls that follow."""

import ctypes
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.mpi import mpirun
from topocomm.execute.transports.device import mpi_device as mpi_devices
from topocomm.execute.transports.device.nccl_library import Facts, mpi_refusal

pytest.importorskip("torch")  # in the processes that are started

HERE = Path(__file__).parents[2]


def job(how, ranks=2, **env):
    pytest.importorskip("mpi4py")
    program = HERE / "mpi_programs" / "device_wire.py"
    return mpirun(ranks, [program, how], env={"PYTHONPATH": str(HERE.parents[1]), "TOPOCOMM_LOG": "info", **env})


def said(done):
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(sorted(line.split("] ", 1) for line in done.stdout.splitlines() if line.startswith("[")))


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.long)])
def test_every_collective_between_devices(ranks):
    done = job("correct", ranks)
    assert said(done) == {f"[{rank}": "ok" for rank in range(ranks)}
    assert "values on devices go by MPI, which takes device memory, since NCCL cannot be used" in done.stderr


@pytest.mark.parametrize(
    ("how", "why"),
    [
        pytest.param("refused", "nor MPI: rank 1: says no", marks=pytest.mark.long),
        pytest.param(
            "wrong",
            "nor MPI, which says that it takes device memory: rank 0: of 8 bytes of device memory others came",
            marks=pytest.mark.long,
        ),
        pytest.param("raises", "rank 1: Exception: MPI_ERR_BUFFER", marks=pytest.mark.long),
    ],
)
def test_what_does_not_hold_is_staged_on_all_ranks(how, why):
    done = job(how)
    assert said(done) == {"[0": "staged", "[1": "staged"}
    assert why in done.stderr


@pytest.mark.alone
@pytest.mark.long
def test_a_rank_that_does_not_come_is_named_at_the_limit():
    done = job("alone", TOPOCOMM_TIMEOUT_S="2")
    (text,) = [line for line in done.stdout.splitlines() if line.startswith("[0] deadline")]
    assert "still waiting for rank 1 (16 bytes from it)" in text
    assert "after 2 s (limit: TOPOCOMM_TIMEOUT_S)" in text


def library(kinds=None, answers=None):
    """A double of mpi4py.MPI, and of the functions that its library has."""
    info = SimpleNamespace(Get=lambda key: kinds if key == "mpi_memory_alloc_kinds" else None, Free=lambda: None)
    return SimpleNamespace(
        COMM_WORLD=SimpleNamespace(Get_info=lambda: info),
        Get_library_version=lambda: "Some MPI 1.2, built somewhere",
        __file__="its own",
        answers=answers or {},
    )


@pytest.mark.parametrize(
    ("kinds", "answers", "refusal"),
    [
        ("mpi,system,cuda:device", {}, ""),
        ("mpi,system", {"MPIX_Query_cuda_support": 1}, ""),
        (None, {"MPIX_Query_cuda_support": 1}, ""),
        (None, {"MPIX_Query_cuda_support": 0}, "take cuda memory (MPIX_Query_cuda_support says 0)"),
        (
            "mpi,system,rocm,cudalike",
            {"MPIX_Query_rocm_support": 1},
            "Some MPI 1.2 does not say that it takes cuda memory",
        ),
        (None, {}, "Some MPI 1.2 does not say that it takes cuda memory"),
    ],
)
def test_the_library_is_asked_in_its_own_ways(kinds, answers, refusal, monkeypatch):
    pytest.importorskip("torch")
    functions = {name: (lambda answer=answer: answer) for name, answer in answers.items()}
    monkeypatch.setattr(mpi_devices, "_libraries", lambda mpi: [mpi.__file__])
    monkeypatch.setattr(ctypes, "CDLL", lambda path: SimpleNamespace(**functions))
    found = mpi_devices.refusal(library(kinds, answers))
    assert found.endswith(refusal.replace("take cuda", "takes cuda")) if refusal else found == ""


@pytest.mark.long
def test_this_library_is_found_and_says_no():
    """The one beside the tests is built without CUDA: it must not be given device memory."""
    pytest.importorskip("mpi4py")
    program = (
        "from mpi4py import MPI\n"
        "from topocomm.execute.transports.device import mpi_device as mpi_devices\n"
        "print('says', mpi_devices.refusal(MPI), flush=True)"
    )
    done = mpirun(1, ["-c", program], env={"PYTHONPATH": str(HERE.parents[1])})
    assert done.returncode == 0, done.stderr
    assert "does not say that it takes cuda memory" in done.stdout


def test_all_ranks_must_have_it():
    facts = [Facts(str(rank), "", None, "", False, False, "") for rank in range(3)]
    assert mpi_refusal(facts) is None
    assert mpi_refusal([facts[0], facts[1]._replace(mpi="is old"), facts[2]]) == "rank 1: is old"
    assert "not joined by MPI" in (mpi_refusal([Facts("", "", None, "", False)]) or "")
