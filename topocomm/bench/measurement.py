"""A whole measurement on one rank: the libraries to compare with, the problems, their rows."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from topocomm.bench.alternatives import GatherAndFold, LibraryCollective, UserDefinedOp
from topocomm.bench.libraries import MpiLibrary, TorchLibrary
from topocomm.bench.method import Library, Method
from topocomm.bench.on_devices import NativeCollective, OnDevices, common_device
from topocomm.bench.problem import Problem, make_problem
from topocomm.bench.registered_alternatives import find_module, registered_exact, registered_methods, with_values
from topocomm.bench.row import Row, measure_problem
from topocomm.bench.timing import Pace
from topocomm.execute.communicator import Communicator
from topocomm.operators.operator import Operator
from topocomm.planning.collectives import CARRYING
from topocomm.planning.plan import Plan


@dataclass(frozen=True)
class Wanted:
    """What to measure.

    Attributes:
        collective: Its name.
        operator: The operator; of broadcast and allgather the one whose values are carried.
        rows: The sizes, in rows.
        pace: How often.
    """

    collective: str
    operator: Operator
    rows: tuple[int, ...]
    pace: Pace

    def problems(self, ranks: int) -> list[Problem]:
        """The problem of each size, none twice."""
        made = [make_problem(self.collective, self.operator, rows, ranks) for rows in self.rows]
        return list({problem.size_bytes: problem for problem in made}.values())


def explain(comm: Communicator, problem: Problem) -> Plan:
    """The plan that a call would take; local."""
    operator = None if problem.collective in CARRYING else problem.operator
    like = problem.given(problem.value(comm.rank))
    return comm.explain(problem.collective, like=like, operator=operator)


def measure_all(comm: Communicator, wanted: Wanted) -> Iterator[list[Row]]:
    """The rows of every size; collective."""
    library = open_library(comm)
    module = find_module(wanted.operator.name)
    wanted = replace(wanted, operator=with_values(wanted.operator, module))

    device = common_device(comm)

    def alternatives(problem: Problem) -> list[Method]:
        made: list[Method] = []
        if device is not None:
            for planned in (False, True):
                made += [OnDevices(comm, problem, device, graph=graph, planned=planned) for graph in (False, True)]
            made.append(NativeCollective(comm, problem, device))
        if library is None:
            return made
        made.append(LibraryCollective(library, problem))
        if wanted.collective == "allreduce":
            made += [*registered_methods(module, library), GatherAndFold(library, problem)]
        if isinstance(library, MpiLibrary):
            made.append(UserDefinedOp(library, problem))
        return made

    for problem in wanted.problems(comm.size):
        yield measure_problem(comm, problem, alternatives, wanted.pace, registered_exact(module))
    if library is not None:
        library.close()


def open_library(comm: Communicator) -> Library | None:
    """The library that the ranks were started with; collective."""
    if comm.session.transport.name == "mpi" and comm.size > 1:
        mpi: Any = sys.modules["mpi4py.MPI"]
        return MpiLibrary(mpi.COMM_WORLD)
    if comm.session.transport.name == "torch":
        return TorchLibrary()
    return None
