"""Other ways to merge partials, as `topocomm bench` runs them: each gives the merge, but the messages alone."""

import numpy as np

from attention import LOGSUMEXP
from attention.bench import alternatives, draw, exact
from topocomm import MAX, SUM, run_local

SHAPE = {"out": ((3, 8), np.float32), "lse": ((3,), np.float32)}
OPERATORS = {"max": MAX, "sum": SUM}


class Library:
    """All-reduces over a communicator in the form in which a library's are called."""

    def __init__(self, comm):
        self.comm, self.size = comm, comm.size

    def allreduce(self, send, receive, op):
        return lambda: self.comm.allreduce(send, OPERATORS[op], out=receive)


def test_every_way_gives_the_merge_again_and_again():
    layout = LOGSUMEXP.layout(SHAPE)
    values = [draw(np.random.default_rng(rank), layout) for rank in range(3)]
    wanted = exact(values)

    def on_rank(comm):
        results = {}
        for way in alternatives(Library(comm)):
            x = {name: array.copy() for name, array in values[comm.rank].items()}
            assert way.prepare(x, {name: np.empty_like(array) for name, array in x.items()})
            for _ in range(2):
                way.run()
            results[way.name] = way.result()
            way.free()
        return results

    for results in run_local(on_rank, ranks=3):
        assert results.pop("3 all-reduces alone") is None
        assert list(results) == ["3 all-reduces + rescale", "MAX + packed SUM", "one SUM + divide"]
        for merged in results.values():
            for name, array in wanted.items():
                np.testing.assert_allclose(merged[name], array, rtol=0, atol=2e-6)


def test_the_exact_merge_of_rows_that_are_empty():
    empty = {"out": np.full((2, 4), np.nan), "lse": np.full(2, -np.inf)}
    merged = exact([{**empty, "out": np.zeros((2, 4))}, {"out": np.ones((2, 4)), "lse": np.array([1.5, -np.inf])}])
    assert merged["lse"].tolist() == [1.5, -np.inf]
    assert merged["out"].tolist() == [[1.0] * 4, [0.0] * 4]


def test_where_the_library_has_no_such_call_the_way_is_left_out():
    class Without:
        def allreduce(self, send, receive, op):
            return None if op == "max" else lambda: None

    x = draw(np.random.default_rng(0), LOGSUMEXP.layout(SHAPE))
    assert [way.prepare(x, x) for way in alternatives(Without())] == [False] * 4
