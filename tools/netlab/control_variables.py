"""Open MPI's control variables in a running job, by MPI_T: which of its algorithms a new communicator takes."""

from __future__ import annotations

import ctypes
from pathlib import Path

from .namespaces import LabError

ALGORITHMS = {
    1: "basic linear",
    2: "nonoverlapping",
    3: "recursive doubling",
    4: "ring",
    5: "segmented ring",
    6: "Rabenseifner",
}
"""Values of `coll_tuned_allreduce_algorithm` of Open MPI 5.0; 0 leaves the choice to its table."""


class ControlVariables:
    """The variables of the MPI library that this process has loaded.

    Raises:
        LabError: The library gives no access to them.
    """

    def __init__(self) -> None:
        maps = Path("/proc/self/maps").read_text()
        paths = {line.split()[-1] for line in maps.splitlines() if "/libmpi.so" in line}
        if not paths:
            raise LabError("no libmpi.so in this process; import mpi4py.MPI first")
        self._library = ctypes.CDLL(min(paths))
        provided = ctypes.c_int()
        self._call("MPI_T_init_thread", 0, ctypes.byref(provided))

    def set(self, name: str, value: int) -> None:
        """Give an integer variable a value; communicators that are there keep what they had.

        Raises:
            LabError: There is no such variable, or it cannot be set.
        """
        index, count, handle = ctypes.c_int(), ctypes.c_int(), ctypes.c_void_p()
        self._call("MPI_T_cvar_get_index", name.encode(), ctypes.byref(index))
        self._call("MPI_T_cvar_handle_alloc", index, None, ctypes.byref(handle), ctypes.byref(count))
        self._call("MPI_T_cvar_write", handle, ctypes.byref(ctypes.c_int(value)), what=name)
        self._call("MPI_T_cvar_handle_free", ctypes.byref(handle))

    def _call(self, function: str, *arguments: object, what: str = "") -> None:
        status = getattr(self._library, function)(*arguments)
        if status:
            raise LabError(f"{function}{what and f' of {what}'}: status {status}")
