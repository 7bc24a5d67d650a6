"""The logsumexp merge on every algorithm and rank count against float64: on threads, and on processes under mpirun."""

import numpy as np
import pytest

import topocomm
from attention import LOGSUMEXP
from tests.attention.merging import assert_close, exact, partial
from tests.machines import hosts, switch
from tests.plans import every_plan

SHAPE = (7,)


def check_on_threads(topology, ranks):
    values = [partial(rank, SHAPE) for rank in range(ranks)]
    layout = LOGSUMEXP.layout({name: (array.shape, array.dtype) for name, array in values[0].items()})
    plans = every_plan(topology, "allreduce", LOGSUMEXP, layout)

    def body(comm):
        value = values[comm.rank]
        calls = [comm.prepare("allreduce", like=value, operator=LOGSUMEXP, plan=plan) for plan in plans]
        return [call(value) for call in calls]

    wanted = exact(values)
    outcomes = topocomm.run_local(body, ranks=ranks, topology=topology)
    for index, plan in enumerate(plans):
        assert_close(outcomes[0][index], wanted, ranks, plan.algorithm)
        for results in outcomes:
            for name, array in results[index].items():
                assert array.tobytes() == outcomes[0][index][name].tobytes(), f"{plan.algorithm}: bits differ"
    return {plan.algorithm for plan in plans}


@pytest.mark.parametrize(
    "ranks", [*range(1, 18), *(pytest.param(ranks, marks=pytest.mark.soak) for ranks in (31, 32, 64))]
)
def test_on_threads(ranks):
    assert check_on_threads(switch(ranks), ranks) >= {"flat", "binomial", "recursive-doubling", "ring"}


@pytest.mark.parametrize(("count", "gpus"), [(2, 2), (3, 4), (5, 3)])
def test_two_levels_on_threads(count, gpus):
    assert any(name.startswith(("rails", "leaders")) for name in check_on_threads(hosts(count, gpus), count * gpus))


def test_the_reference_is_the_definition():
    whole = exact(
        [
            {"out": np.array([[2.0]]), "lse": np.array([np.log(1.0)])},
            {"out": np.array([[5.0]]), "lse": np.array([np.log(3.0)])},
        ]
    )
    np.testing.assert_allclose([whole["out"][0, 0], whole["lse"][0]], [17 / 4, np.log(4)])
