"""Words for how data moves by the engines that there are."""

from types import SimpleNamespace

import numpy as np
import pytest

from topocomm import SUM, run_local
from topocomm.execute.host.engine_words import way_of
from topocomm.execute.host.sliced_engine import SlicedEngine

MEMORY, OWN_MEMORY = SimpleNamespace(alone=False), SimpleNamespace(alone=True)


def engine(*, shared=MEMORY, in_python=False, in_one_copy=False):
    return SimpleNamespace(shared=shared, in_python=in_python, in_one_copy=in_one_copy)


def sliced(inner):
    made = SlicedEngine.__new__(SlicedEngine)
    made.engines = [inner]
    return made


@pytest.mark.parametrize(
    ("made", "hosts", "words"),
    [
        (engine(), (0,), "one rank"),
        (engine(shared=None), (0, 0), "MPI messages"),
        (engine(shared=OWN_MEMORY), (0, 1), "MPI messages"),
        (engine(), (0, 0), "shared memory, compiled"),
        (engine(in_python=True), (0, 0), "shared memory"),
        (engine(in_one_copy=True), (0, 0), "shared memory, compiled, in one copy"),
        (sliced(engine()), (0, 0), "shared memory, compiled, in slices"),
        (engine(), (0, 0, 1), "shared memory within hosts, MPI messages between"),
    ],
)
def test_the_way_of_an_engine(made, hosts, words):
    assert way_of(made, SimpleNamespace(name="mpi", size=len(hosts), hosts=hosts)) == words


def test_the_log_says_it_of_every_call(caplog):
    with caplog.at_level("INFO", logger="topocomm"):
        run_local(lambda comm: comm.allreduce(np.ones(()), SUM), ranks=2)
    assert "rank 0: allreduce sum, value float64 []: threads" in caplog.messages
