"""What torch.compile leaves alone: collectives in compiled functions give what they give in plain ones."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from topocomm import MAX, SUM, OperatorError, run_local
from topocomm.execute.dynamo import skipped_by_dynamo

AFTER = """
import sys
from topocomm import SUM, run_local

def work(comm):
    import torch

    graphs = []
    twice = torch.compile(lambda x: comm.allreduce(x * 2, SUM) + 1, backend=lambda g, _: graphs.append(g) or g)
    return twice(torch.ones(2)).tolist(), [str(g.code).count("+") for g in graphs]

assert "torch" not in sys.modules
print(run_local(work, ranks=1)[0])
"""


def collectives(comm, x):
    """One call of each kind, with what torch does before and after it in the graphs."""
    handle = comm.prepare("allreduce", like=x, operator=SUM).start(x + 1)
    half = comm.split(comm.rank % 2)
    return [
        comm.allreduce(x * 2, SUM) / comm.size,
        comm.allreduce(x * 2, SUM, order="canonical"),
        comm.allreduce({"value": x * 2}, MAX)["value"] + comm.rank,
        comm.reduce(x + 1, SUM, root=0),
        comm.broadcast(x * 3, root=comm.size - 1) + 1,
        comm.reduce_scatter(x + 1, SUM, rows=[1] * (comm.size - 1) + [5 - comm.size]) * 2,
        comm.allgather(x[: comm.rank + 1] * 2),
        comm.scan(x - 1, SUM) + 1,
        comm.exscan(x - 1, SUM) + 1,
        comm.barrier(),
        handle.wait() + 1,
        comm.prepare("scan", like=x, operator=SUM)(x * 2),
        torch.from_numpy(comm.allreduce(np.arange(3.0), SUM)) * 2,
        half.allreduce(x, SUM),
    ]


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("ranks", "backend"),
    [
        (1, "eager"),
        (3, "eager"),
        pytest.param(2, "aot_eager", marks=pytest.mark.long),
        *(pytest.param(*case, marks=pytest.mark.soak) for case in ((2, "eager"), (1, "aot_eager"), (3, "aot_eager"))),
    ],
)
def test_collectives_in_a_compiled_function(ranks, backend):
    def work(comm):
        x = torch.arange(8.0).reshape(4, 2) + comm.rank
        return collectives(comm, x), torch.compile(collectives, backend=backend)(comm, x)

    for plain, compiled in run_local(work, ranks=ranks):
        assert [(None if x is None else x.tolist()) for x in compiled] == [
            (None if x is None else x.tolist()) for x in plain
        ]


def test_nothing_that_is_called_from_there_is_traced():
    graphs = []

    def helper(x):
        return x.sin()

    @skipped_by_dynamo
    def skipped(x):
        return helper(x).cos() if not torch.compiler.is_compiling() else None

    def whole(x):
        return skipped(x + 1) * 2

    def backend(graph, _):
        graphs.append(graph.code)
        return graph

    compiled, x = torch.compile(whole, backend=backend), torch.ones(3)
    for _ in range(2):
        assert torch.equal(compiled(x), (x + 1).sin().cos() * 2)
    assert torch.equal(torch.compile(skipped, backend=backend)(x), x.sin().cos())
    assert len(graphs) == 2
    assert not [code for code in graphs if "sin" in code or "cos" in code]


def test_what_is_marked_stays_the_same_object():
    def function(a: int, *, b: int = 2) -> int:
        """Described."""
        return a + b

    code = function.__code__
    assert skipped_by_dynamo(function) is function
    assert function.__code__ is code
    assert (function.__doc__, function(1)) == ("Described.", 3)


def test_all_methods_of_a_class():
    class Methods:
        def method(self, x):
            return x + int(torch.compiler.is_compiling())

        @classmethod
        def of_class(cls, x):
            return x + int(torch.compiler.is_compiling())

        @staticmethod
        def static(x):
            return x + int(torch.compiler.is_compiling())

    def total(x):
        return Methods().method(x), Methods.of_class(x), Methods.static(x)

    assert [int(x) for x in torch.compile(total, backend="eager")(torch.tensor(1))] == [2, 2, 2]
    torch._dynamo.reset()
    skipped_by_dynamo(Methods)
    assert [int(x) for x in torch.compile(total, backend="eager")(torch.tensor(1))] == [1, 1, 1]


def test_an_error_comes_through_and_later_calls_are_compiled():
    def work(comm):
        with pytest.raises(OperatorError, match="expected an array"):
            torch.compile(lambda x: comm.allreduce(x, SUM), backend="eager")("text")

    graphs = []
    run_local(work, ranks=1)
    compiled = torch.compile(lambda x: x * 2, backend=lambda graph, _: graphs.append(graph) or graph)
    assert compiled(torch.ones(2)).tolist() == [2.0, 2.0]
    assert len(graphs) == 1


def test_whole_graphs_are_refused_with_the_reason():
    def work(comm):
        return torch.compile(lambda x: comm.allreduce(x, SUM), backend="eager", fullgraph=True)(torch.ones(2))

    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"allreduce.*ranks meet in it"):
        run_local(work, ranks=1)


@pytest.mark.long
def test_torch_that_is_imported_after_the_communicator_was_made():
    job = subprocess.run([sys.executable, "-c", AFTER], capture_output=True, text=True, timeout=120)
    assert (job.stdout, job.returncode) == ("([3.0, 3.0], [0, 1])\n", 0), job.stderr
