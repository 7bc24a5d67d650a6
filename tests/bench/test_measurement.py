"""Which methods a measurement takes, and what packages add to it."""

from types import SimpleNamespace

import pytest

from attention import LOGSUMEXP
from topocomm import SUM, OperatorError, run_local
from topocomm.bench import measurement
from topocomm.bench.measurement import Wanted, explain, find_module, measure_all, with_values
from topocomm.bench.problem import make_problem
from topocomm.bench.timing import Pace


def entry(name, module=None, error=None):
    def load():
        if error is not None:
            raise error
        return module

    return SimpleNamespace(name=name, value="package.module", load=load)


def test_the_module_of_an_operator_is_found_by_its_entry_point(monkeypatch):
    module = SimpleNamespace(draw=max)
    monkeypatch.setattr(measurement, "entry_points", lambda group: [entry("other"), entry("mine", module)])
    assert find_module("mine") is module
    assert find_module("sum") is None
    assert with_values(SUM, module).sample is max


def test_without_a_module_nothing_changes():
    assert with_values(SUM, None) is SUM
    assert with_values(SUM, SimpleNamespace()) is SUM


def test_a_module_that_cannot_be_loaded_is_named(monkeypatch):
    monkeypatch.setattr(measurement, "entry_points", lambda group: [entry("mine", error=ImportError("no numba"))])
    with pytest.raises(OperatorError, match=r"'mine': cannot load its topocomm.bench package.module: no numba"):
        find_module("mine")


def test_sizes_that_give_the_same_problem_are_measured_once():
    wanted = Wanted("reduce_scatter", SUM, (1, 2, 3, 6), Pace(1, 1, 1))
    assert [problem.layout.rows for problem in wanted.problems(3)] == [3, 6]


@pytest.mark.parametrize("operator", [SUM, LOGSUMEXP], ids=lambda o: o.name)
def test_on_threads_only_our_own_methods_are_rows(operator):
    wanted = Wanted("allreduce", operator, (1, 5), Pace(1, 1, 1))
    sizes = run_local(lambda comm: list(measure_all(comm, wanted)), ranks=2)[0]
    assert [[row.name for row in rows] for rows in sizes] == [["topocomm", "topocomm prepared"]] * 2
    assert all(row.wrong == 0 for rows in sizes for row in rows)


def test_the_plan_explained_is_the_one_that_is_measured():
    problem = make_problem("allgather", SUM, 6, 3)
    plan = run_local(lambda comm: explain(comm, problem), ranks=3)[0]
    rows = run_local(lambda comm: list(measure_all(comm, Wanted("allgather", SUM, (6,), Pace(1, 1, 1)))), ranks=3)[0]
    assert rows[0][0].plan.digest == plan.digest
