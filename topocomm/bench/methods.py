"""Methods that the bench compares: topocomm, a library's own collective, a user-defined MPI operator, gather and fold.

Each prepares its buffers beforehand and pickles nothing; values are packed before the clock runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from topocomm.bench.libraries import Call, Library, MpiLibrary
from topocomm.bench.problem import ROOT, Fields, Problem
from topocomm.execute.calls.prepared_call import PreparedCall
from topocomm.execute.communicator import Communicator
from topocomm.execute.host.staged_engine import aligned_buffer
from topocomm.operators.builtin import BAND, BOR, BXOR, MAX, MIN, PROD, SUM
from topocomm.operators.layout import ALIGNMENT_BYTES
from topocomm.planning.collectives import FROM_ROOT, ROOTED, TO_ROOT

Arrays = Mapping[str, NDArray[Any]]
LIBRARY_OPERATORS = (SUM, PROD, MAX, MIN, BAND, BOR, BXOR)
"""Operators that libraries have under the same names."""
GATHERED_LIMIT_BYTES = 256 << 20
"""Limit of the bytes gathered on every rank."""


class Method(Protocol):
    """One way to do a collective."""

    name: str
    """The row's name."""

    in_place: bool
    """Whether the result may overwrite the value."""

    def prepare(self, x: Arrays, out: Arrays) -> bool:
        """Prepare the call; False on every rank if these arrays do not fit; collective.

        Args:
            x: This rank's value by field. In place, `out` is x.
            out: Arrays for the result; some methods make their own.
        """

    def run(self) -> object:
        """Run the call once; collective. This is what is timed."""

    def result(self) -> Arrays | None:
        """Return the last run's result by field; None if this rank has none. Not timed."""

    def free(self) -> None:
        """Release everything; collective."""


PLAIN = "topocomm"
PREPARED = "topocomm prepared"


class Ours:
    """A collective of topocomm; `prepared` calls write to given arrays, others return new ones."""

    def __init__(self, comm: Communicator, problem: Problem, *, prepared: bool) -> None:
        self.name = PREPARED if prepared else PLAIN
        self.in_place = problem.fits_in_place
        self.call: PreparedCall | None = None
        self._comm, self._problem, self._prepared = comm, problem, prepared
        self._result: Any = None
        self._do: Callable[[], Any] = lambda: None

    def prepare(self, x: Arrays, out: Arrays) -> bool:
        problem = self._problem
        value, target = problem.given(dict(x)), problem.given(dict(out))
        name, operator = problem.collective, problem.reduction
        if self._prepared:
            self.call = self._comm.prepare(name, like=value, operator=operator, root=ROOT)
            gives = name not in FROM_ROOT or self._comm.rank == ROOT
            self._do = partial(self.call, value if gives else None, out=target)
            return True
        words = (value,) if operator is None else (value, operator)
        root = {"root": ROOT} if name in ROOTED else {}
        place = {"out": target} if x is out else {}
        self._do = partial(getattr(self._comm, name), *words, **root, **place)
        return True

    def run(self) -> None:
        self._result = self._do()

    def result(self) -> Fields | None:
        return None if self._result is None else self._problem.fields_of(self._result)

    def free(self) -> None:
        if self.call is not None:
            self.call.free()
        self._result = None


class LibraryMethod:
    """Base of methods on a library: `prepare` sets what `run` calls and the arrays of the result."""

    name = ""
    in_place = False

    def __init__(self, library: Library, problem: Problem) -> None:
        self._library, self._problem = library, problem
        self._out: Arrays = {}
        self.run: Call = lambda: None

    def result(self) -> Arrays | None:
        name, rank = self._problem.collective, self._library.rank
        return None if (name in TO_ROOT and rank != ROOT) or (name == "exscan" and rank == 0) else self._out

    def free(self) -> None:
        """Do nothing: no resource is held."""


class LibraryCollective(LibraryMethod):
    """The library's own collective."""

    def __init__(self, library: Library, problem: Problem) -> None:
        super().__init__(library, problem)
        self.name = library.title(problem.collective)
        self.in_place = problem.fits_in_place

    def prepare(self, x: Arrays, out: Arrays) -> bool:
        """False for operators that the library lacks."""
        problem, operator = self._problem, self._problem.reduction
        if len(x) != 1 or not (operator is None or operator in LIBRARY_OPERATORS):
            return False
        (name,) = x
        op = None if operator is None else operator.name
        call = self._library.collective(problem.collective, x[name], out[name], op)
        if call is None:
            return False
        self.run = call
        self._out = x if problem.collective == "broadcast" and self._library.rank == ROOT else out
        return True


class UserDefinedOp(LibraryMethod):
    """`MPI.Op.Create` around the operator's combine, on whole records, so that MPI splits no row."""

    name = "MPI user-defined op"
    _library: MpiLibrary
    _handles: Sequence[Any] = ()

    def prepare(self, x: Arrays, out: Arrays) -> bool:
        problem, mpi, operator = self._problem, self._library.mpi, self._problem.reduction
        if operator is None:
            return False
        record = np.dtype([(f.name, f.dtype, f.row_shape) for f in problem.layout.fields])
        sent, received = np.empty(problem.value_rows, record), np.empty(problem.result_rows, record)
        for name, array in x.items():
            sent[name] = array

        def fold(left: Any, right: Any, _: Any) -> None:  # right = left . right
            a, b = np.frombuffer(left, record), np.frombuffer(right, record)
            combined = operator.combine({name: a[name] for name in x}, {name: b[name] for name in x})
            for name in x:
                b[name] = combined[name]

        row = mpi.BYTE.Create_contiguous(record.itemsize).Commit()
        op = mpi.Op.Create(fold, operator.commutative)
        self._handles = row, op
        self._out = {name: received[name] for name in x}
        buffers = [sent, problem.value_rows, row], [received, problem.result_rows, row]
        self.run = self._library.call(problem.collective, *buffers, op)
        return True

    def free(self) -> None:
        for handle in self._handles:
            handle.Free()


class GatherAndFold(LibraryMethod):
    """All-gather of the packed values, then the operator's own fold on every rank."""

    name = "all-gather + local fold"

    def prepare(self, x: Arrays, out: Arrays) -> bool:
        """Allreduce only, up to GATHERED_LIMIT_BYTES."""
        problem, ranks, layout = self._problem, self._library.size, self._problem.layout
        stride = -(-layout.packed_bytes(layout.rows) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        if problem.collective != "allreduce" or stride * ranks > GATHERED_LIMIT_BYTES:
            return False
        send, everyone = aligned_buffer(stride), aligned_buffer(stride * ranks)
        for name, view in layout.views(send, 0, layout.rows).items():
            view[...] = x[name].reshape(view.shape)
        gather = self._library.allgather(send, everyone.reshape(ranks, stride))
        if gather is None:
            return False
        fold = problem.operator.bind_fold(layout, everyone, layout.rows, [stride * rank for rank in range(ranks)])
        target = {f.name: out[f.name].reshape(layout.rows, *f.row_shape) for f in layout.fields}
        self._out = out

        def run() -> None:
            gather()
            fold(target)

        self.run = run
        return True
