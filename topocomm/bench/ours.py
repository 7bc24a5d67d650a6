"""Our own two rows: the plain call, and the call prepared once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from topocomm.bench.method import Arrays
from topocomm.bench.problem import ROOT, WITH_ROOT, Fields, Problem
from topocomm.execute.calls.prepared_call import PreparedCall
from topocomm.execute.communicator import Communicator
from topocomm.planning.collectives import CARRYING

PLAIN = "topocomm"
PREPARED = "topocomm prepared"


class Ours:
    """A collective of ours.

    Args:
        comm: The communicator.
        problem: What to do.
        prepared: Whether to prepare the call, which then writes to arrays given; else a new result is made each time.
    """

    def __init__(self, comm: Communicator, problem: Problem, *, prepared: bool) -> None:
        self.name = PREPARED if prepared else PLAIN
        self.in_place = problem.value_rows == problem.result_rows
        self.call: PreparedCall | None = None
        self._comm, self._problem, self._prepared = comm, problem, prepared
        self._made: Any = None
        self._do: Callable[[], Any] = lambda: None

    def prepare(self, x: Arrays, out: Arrays) -> bool:
        """As `Method.prepare`."""
        problem = self._problem
        value, target = problem.given(dict(x)), problem.given(dict(out))
        name, operator = problem.collective, None if problem.collective in CARRYING else problem.operator
        if self._prepared:
            self.call = self._comm.prepare(name, like=value, operator=operator, root=ROOT)
            gives = name != "broadcast" or self._comm.rank == ROOT
            self._do = partial(self.call, value if gives else None, out=target)
            return True
        words = (value,) if operator is None else (value, operator)
        root = {"root": ROOT} if name in WITH_ROOT else {}
        place = {"out": target} if x is out else {}
        self._do = partial(getattr(self._comm, name), *words, **root, **place)
        return True

    def run(self) -> None:
        """As `Method.run`."""
        self._made = self._do()

    def result(self) -> Fields | None:
        """As `Method.result`."""
        made = self._made
        if made is None or isinstance(made, dict):
            return made
        return {self._problem.layout.fields[0].name: made}

    def free(self) -> None:
        """As `Method.free`."""
        if self.call is not None:
            self.call.free()
        self._made = None
