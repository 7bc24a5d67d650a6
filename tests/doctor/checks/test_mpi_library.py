"""Which MPI library is loaded, asked in a child process; and launchers of another MPI."""

import os
import subprocess

import pytest

from tests.doctor.machines import found
from topocomm.doctor.checks import mpi_library
from topocomm.doctor.checks.launch_checks import check_launcher
from topocomm.doctor.checks.mpi_library import ask_mpi_library

OPEN_MPI, MPICH, INTEL = "Open MPI v5.0.11", "MPICH Version: 5.0.2", "Intel(R) MPI Library 2021.16"


def module_in(folder, text):
    """An environment in which `import mpi4py` runs this text."""
    (folder / "mpi4py.py").write_text(text)
    return {**os.environ, "PYTHONPATH": str(folder)}


def test_the_library_is_named():
    pytest.importorskip("mpi4py")
    assert ask_mpi_library().name.startswith(("Open MPI", "MPICH"))


def test_a_library_that_hangs_is_left(tmp_path):
    environment = module_in(tmp_path, "import time\ntime.sleep(60)\n")
    name, trouble = ask_mpi_library(environment, timeout_s=0.5)
    assert (name, trouble) == (None, "loading MPI takes longer than 0.5 s")


def test_a_library_that_ends_the_process(tmp_path):
    environment = module_in(tmp_path, "import os\nos.abort()\n")
    assert ask_mpi_library(environment) == (None, "loading MPI ends the process: SIGABRT")


def test_a_library_that_is_not_there(tmp_path):
    environment = module_in(tmp_path, "raise RuntimeError('cannot load MPI library')\n")
    name, trouble = ask_mpi_library(environment)
    assert name is None
    assert "cannot load MPI library" in trouble


def test_no_child_process(monkeypatch):
    def refuse(*_, **__):
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "run", refuse)
    assert "Resource temporarily unavailable" in ask_mpi_library().trouble


def test_signals_without_a_name():
    assert mpi_library._signal(200) == "signal 200"


@pytest.mark.parametrize(
    ("launched", "library", "environment", "level", "parts"),
    [
        (("mpirun", 1, 4), MPICH, {}, "FAIL", ("Open MPI's mpirun", "rank 1 of 4", "MPICH", "MPI4PY_LIBMPI=")),
        (("mpirun", 1, 4), INTEL, {}, "FAIL", ("Intel",)),
        (("mpirun", 1, 4), OPEN_MPI, {}, "ok", ()),
        (("mpirun", 1, 4), None, {}, "ok", ()),
        (("mpiexec", 1, 4), OPEN_MPI, {"PMI_RANK": "1"}, "FAIL", ("mpiexec of MPICH or Intel MPI", "which -a mpirun")),
        (("mpiexec", 1, 4), OPEN_MPI, {"PMI_RANK": "1", "PMIX_RANK": "1"}, "ok", ()),
        (("mpiexec", 1, 4), OPEN_MPI, {"PMI_RANK": "1", "SLURM_PROCID": "1"}, "ok", ()),
        (("mpiexec", 1, 4), MPICH, {"PMI_RANK": "1"}, "ok", ()),
        (("srun", 1, 4), OPEN_MPI, {"SLURM_PROCID": "1"}, "FAIL", ("without PMI or PMIx", "srun --mpi=pmix")),
        (("srun", 1, 4), MPICH, {"SLURM_PROCID": "1"}, "warn", ("without PMI or PMIx", "srun --mpi=list")),
        (("srun", 1, 4), OPEN_MPI, {"PMI_FD": "3"}, "warn", ("without PMIx",)),
        (("srun", 1, 4), OPEN_MPI, {"PMIX_RANK": "1"}, "ok", ()),
        (("srun", 0, 1), OPEN_MPI, {}, "ok", ("started 1 rank",)),
        (("torchrun", 0, 4), MPICH, {}, "ok", ("torchrun started 4 ranks",)),
    ],
)
def test_launchers_and_libraries(launched, library, environment, level, parts):
    found([check_launcher(launched, library, environment)], "launcher", level, *parts)
