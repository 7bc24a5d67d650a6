"""One row of the table: measured, checked, and its bandwidths as nccl-tests defines them.

algbw = size / time. busbw = algbw x the share of the payload that a rank's port must carry with any algorithm, so it
compares with the hardware's bandwidth for any number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from topocomm.bench.facts import way_of
from topocomm.bench.methods import PLAIN, PREPARED, Method, Ours
from topocomm.bench.on_devices import DeviceMethod, OnDevices
from topocomm.bench.problem import Fields, Problem
from topocomm.bench.result_check import Exact, count_wrong, expected
from topocomm.bench.timing import Pace, Timed, Times, measure
from topocomm.execute.communicator import Communicator
from topocomm.operators.builtin import SUM
from topocomm.planning.collectives import IN_PARTS
from topocomm.planning.plan import Plan

OURS = (PLAIN, PREPARED)
MakeMethods = Callable[[Problem], list[Method]]


@dataclass(frozen=True)
class Cell:
    """Figures out of place or in place: times, bandwidths, wrong elements on all ranks together.

    `wrong` is None if the method has no result to check.
    """

    times: Times
    alg_gb_per_s: float
    bus_gb_per_s: float
    wrong: int | None


@dataclass(frozen=True)
class Row:
    """One method at one size.

    Attributes:
        out_of_place: None if the method works in place only.
        in_place: None if it cannot.
        plan, way: The plan executed and how data moves, for topocomm's methods.
    """

    problem: Problem
    name: str
    out_of_place: Cell | None
    in_place: Cell | None
    plan: Plan | None = None
    way: str | None = None

    @property
    def main(self) -> Cell:
        """The cell out of place, else the one in place."""
        cell = self.out_of_place or self.in_place
        assert cell is not None, "every row has one"
        return cell

    @property
    def is_ours(self) -> bool:
        """Whether the method is topocomm in host memory."""
        return self.name in OURS

    @property
    def predicted_us(self) -> float | None:
        """Predicted time of the plan, or of the library's own collective if that was chosen."""
        return None if self.plan is None else self.plan.call_us

    @property
    def predicted_over_measured(self) -> float | None:
        """Prediction divided by the median."""
        predicted_us = self.predicted_us
        return None if predicted_us is None else predicted_us / self.main.times.percentile_us(50)

    @property
    def wrong(self) -> int:
        """Wrong elements, out of place and in place."""
        return sum(cell.wrong or 0 for cell in (self.out_of_place, self.in_place) if cell is not None)


class _Set:
    def __init__(self, method: Method, x: Fields, out: Fields, original: Fields) -> None:
        self.method = method
        self.x, self.out, self._original = x, out, original
        if isinstance(method, DeviceMethod):
            self.timed = Timed(method.run, finish=method.finish)
        else:
            self.timed = Timed(method.run, self._refill) if x is out else Timed(method.run)

    def result_after_one_run(self) -> Fields | None:
        """Return the result of one run on the original value."""
        self._refill()
        self.method.run()
        result = self.method.result()
        return None if result is None else dict(result)

    def _refill(self) -> None:
        if self.x is self.out:
            for name, array in self.x.items():
                np.copyto(array, self._original[name])


def measure_problem(
    comm: Communicator, problem: Problem, alternatives: MakeMethods, pace: Pace, exact: Exact | None
) -> list[Row]:
    """Measure the rows of one problem, ours first; collective.

    Results are checked against the formula `exact`; None takes the operator's combine.
    """
    original = problem.value(comm.rank)
    sets: dict[tuple[str, bool], _Set] = {}
    names: list[str] = []
    for in_place in (False, True):
        ours: list[Method] = [Ours(comm, problem, prepared=prepared) for prepared in (False, True)]
        for method in (*ours, *alternatives(problem)):
            if in_place and not method.in_place:
                continue
            x = {name: array.copy() for name, array in original.items()} if in_place else original
            out = x if in_place else problem.empty_result()
            if method.prepare(x, out):
                names.append(method.name)
                sets[method.name, in_place] = _Set(method, x, out, original)
    prepared = sets[PREPARED, False].method
    assert isinstance(prepared, Ours)
    assert prepared.call is not None
    executed = dict.fromkeys(OURS, (prepared.call.plan, way_of(prepared.call)))
    for one in sets.values():
        if isinstance(one.method, OnDevices) and one.method.call is not None:
            executed[one.method.name] = one.method.call.plan, one.method.way
    cells = _measure_sets(comm, problem, sets, pace, exact)
    for one in sets.values():
        one.method.free()
    rows = []
    for name in dict.fromkeys(names):
        both = cells.get((name, False)), cells.get((name, True))
        rows.append(Row(problem, name, *both, *executed.get(name, (None, None))))
    return rows


def _measure_sets(
    comm: Communicator, problem: Problem, sets: dict[tuple[str, bool], _Set], pace: Pace, exact: Exact | None
) -> dict[tuple[str, bool], Cell]:
    times = measure(comm, [one.timed for one in sets.values()], pace)
    segments = expected(problem, comm.rank, exact)
    counts = np.zeros((len(sets), 2), np.int64)  # wrong numbers, ranks that have a result
    for index, one in enumerate(sets.values()):
        result = one.result_after_one_run()
        if result is not None:
            counts[index] = count_wrong(problem, result, segments), 1
    totals: Sequence[Sequence[int]] = comm.allreduce(counts, SUM).tolist()
    factor = bus_factor(problem.collective, problem.ranks)
    cells = {}
    for key, time_us, (wrong, results) in zip(sets, times, totals, strict=True):
        alg = gb_per_s(problem.size_bytes, time_us.mean_us)
        cells[key] = Cell(time_us, alg, alg * factor, wrong if results else None)
    return cells


PORT_SHARES = {"allreduce": (2, "2(n-1)/n"), **dict.fromkeys(IN_PARTS, (1, "(n-1)/n"))}
"""busbw / algbw of `n` ranks: how often (n-1)/n, and the text; 1 for other collectives."""


def bus_factor(collective: str, ranks: int) -> float:
    """Return busbw / algbw."""
    return PORT_SHARES[collective][0] * (ranks - 1) / ranks if collective in PORT_SHARES else 1.0


def bus_formula(collective: str) -> str:
    """Return the formula of busbw as text."""
    return f"algbw x {PORT_SHARES[collective][1]}" if collective in PORT_SHARES else "algbw"


def gb_per_s(size_bytes: int, time_us: float) -> float:
    """Return decimal gigabytes per second; 0 for no time."""
    return size_bytes / time_us / 1e3 if time_us > 0 else 0.0
