"""A whole measurement on one rank: libraries to compare with, problems, rows.

A package adds alternatives for its operators by the entry-point group `topocomm.bench`. An entry point has an
operator's name and leads to a module with

    alternatives(library) -> list of methods   `topocomm.bench.methods` defines a method, `libraries` a library
    exact(values) -> fields                    optional: the reduction of widened values by formula, in float64
    draw(rng, layout) -> fields                optional: a value to measure with, in place of the operator's `sample`

so the package needs to import nothing of topocomm.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from typing import Any

from topocomm.bench.libraries import Library, MpiLibrary, TorchLibrary
from topocomm.bench.methods import GatherAndFold, LibraryCollective, Method, UserDefinedOp
from topocomm.bench.on_devices import NativeCollective, OnDevices, common_device
from topocomm.bench.problem import Problem, make_problem
from topocomm.bench.row import Row, measure_problem
from topocomm.bench.timing import Pace
from topocomm.errors import OperatorError
from topocomm.execute.communicator import Communicator
from topocomm.operators.operator import Operator
from topocomm.planning.plan import Plan


@dataclass(frozen=True)
class Wanted:
    """Measurement that was asked for.

    Attributes:
        operator: The operator; for broadcast and allgather its values are carried.
    """

    collective: str
    operator: Operator
    rows: tuple[int, ...]
    pace: Pace

    def problems(self, ranks: int) -> list[Problem]:
        """Return the problem of each distinct size."""
        problems = (make_problem(self.collective, self.operator, rows, ranks) for rows in self.rows)
        return list({problem.size_bytes: problem for problem in problems}.values())


def explain(comm: Communicator, problem: Problem) -> Plan:
    """Return the plan that a call would take; local."""
    like = problem.given(problem.value(comm.rank))
    return comm.explain(problem.collective, like=like, operator=problem.reduction)


def measure_all(comm: Communicator, wanted: Wanted) -> Iterator[list[Row]]:
    """Yield the rows of every size; collective."""
    library = open_library(comm)
    module = find_module(wanted.operator.name)
    wanted = replace(wanted, operator=with_values(wanted.operator, module))

    device = common_device(comm)

    def alternatives(problem: Problem) -> list[Method]:
        methods: list[Method] = []
        if device is not None:
            for planned in (False, True):
                methods += [OnDevices(comm, problem, device, graph=graph, planned=planned) for graph in (False, True)]
            methods.append(NativeCollective(comm, problem, device))
        if library is None:
            return methods
        methods.append(LibraryCollective(library, problem))
        if wanted.collective == "allreduce":
            registered = [] if module is None else module.alternatives(library)
            methods += [*registered, GatherAndFold(library, problem)]
        if isinstance(library, MpiLibrary):
            methods.append(UserDefinedOp(library, problem))
        return methods

    for problem in wanted.problems(comm.size):
        yield measure_problem(comm, problem, alternatives, wanted.pace, getattr(module, "exact", None))
    if library is not None:
        library.close()


def open_library(comm: Communicator) -> Library | None:
    """Return the library that the ranks were started with; None without one; collective."""
    if comm.session.transport.name == "mpi" and comm.size > 1:
        mpi: Any = sys.modules["mpi4py.MPI"]
        return MpiLibrary(mpi.COMM_WORLD)
    if comm.session.transport.name == "torch":
        return TorchLibrary()
    return None


GROUP = "topocomm.bench"


def find_module(operator: str) -> Any:
    """Return the module registered for an operator, or None.

    Raises:
        OperatorError: It cannot be loaded.
    """
    for entry in entry_points(group=GROUP):
        if entry.name == operator:
            try:
                return entry.load()
            except (ImportError, AttributeError) as error:
                raise OperatorError(f"operator {operator!r}: cannot load its {GROUP} {entry.value}: {error}") from None
    return None


def with_values(operator: Operator, module: Any) -> Operator:
    """Return the operator with `draw` of its registered module as its sample."""
    draw = getattr(module, "draw", None)
    return operator if draw is None else replace(operator, sample=draw)
