"""Whether the MPI library says that it takes pointers to device memory.

A library that does not may end the process that gives it one. So it is asked first, and only a library that says yes is
tried (`mpi_wire.py`).
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

from topocomm.execute.transports.mpi import library_name

QUERIES = {"cuda": ("MPIX_Query_cuda_support",), "rocm": ("MPIX_Query_rocm_support", "MPIX_Query_hip_support")}
"""Functions without arguments of Open MPI, MPICH and those made of them; 1 is yes, also of how they run now."""
KINDS_KEY = "mpi_memory_alloc_kinds"
"""What a communicator's info says since MPI 4.1: kinds of memory by name, some with `:restrictions`."""


def refusal(mpi: Any) -> str:
    """Why the library is not given device memory, in words; empty where it says that it takes it.

    Args:
        mpi: The initialised `mpi4py.MPI`.
    """
    kind = _kind()
    if kind in _told_kinds(mpi):
        return ""
    answers = {name: _answer(mpi, name) for name in QUERIES[kind]}
    if 1 in answers.values():
        return ""
    said = [f"{name} says {answer}" for name, answer in answers.items() if answer is not None]
    return f"{library_name(mpi)} does not say that it takes {kind} memory" + f" ({', '.join(said)})" * bool(said)


def _kind() -> str:
    import torch

    return "cuda" if getattr(torch.version, "hip", None) is None else "rocm"


def _told_kinds(mpi: Any) -> set[str]:
    """The kinds of memory that the library lists; none where it lists none."""
    info = mpi.COMM_WORLD.Get_info()
    try:
        told = info.Get(KINDS_KEY) or ""
    finally:
        info.Free()
    return {kind.split(":")[0].strip() for kind in told.split(",")}


def _answer(mpi: Any, name: str) -> int | None:
    """What a function of the library that is loaded says; None where it has no such function."""
    for path in _libraries(mpi):
        try:
            function = getattr(ctypes.CDLL(path), name)
        except (OSError, AttributeError):
            continue
        function.restype, function.argtypes = ctypes.c_int, ()
        return int(function())
    return None


def _libraries(mpi: Any) -> list[str]:
    """The files that may have the library's functions: those of MPI that this process has mapped, and mpi4py's own."""
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        maps = ""
    mapped = {line.split(maxsplit=5)[5] for line in maps.splitlines() if len(line.split(maxsplit=5)) == 6}
    return [*sorted(path for path in mapped if Path(path).name.startswith("libmpi")), str(mpi.__file__)]
