"""The shortest ways through an allreduce in shared memory."""

import time
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from tests.attention.merging import assert_close, exact, partial
from tests.execute.engine_jobs import CALLS, Job, fast_path, fast_path_into, jobs
from tests.machines import switch
from tests.plans import every_plan
from tests.thinning import alternating
from topocomm import SUM
from topocomm.execute.calls.fast_path import bind_tensors
from topocomm.execute.host.call_engine import NOTHING
from topocomm.execute.liveness.recorder import MASK, SWEEP_MASK, TOLD
from topocomm.execute.session import BUSY
from topocomm.operators.tensors import BFLOAT16, as_array, as_tensor
from topocomm.planning.collectives import IN_PARTS


def spread_out(rank, call, shape):
    """Small numbers: every dtype holds them and their sums."""
    return np.arange(np.prod(shape)).reshape(shape) % 7 + rank + call % 5


@pytest.mark.parametrize("dtype", [np.float32, BFLOAT16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("tensors", [False, True], ids=["arrays", "tensors"])
@pytest.mark.parametrize("folds", ["compiled", "in NumPy"])
def test_the_fast_path_of_bare_values(folds, tensors, dtype):
    if tensors:
        pytest.importorskip("torch")
    ranks, shape = 3, (7, 5)
    operator = SUM if folds == "compiled" else replace(SUM, kernel=None)
    layout = operator.layout({"value": (shape, dtype)})
    give, take = (as_tensor, as_array) if tensors else (np.asarray, np.asarray)
    for plan in every_plan(switch(ranks), "allreduce", operator, layout):
        job = Job(plan, layout, operator)
        ways = [bind_tensors(way, [layout.fields[0].dtype], bare=True) if tensors else way for way in job.fast_path]

        def body(rank, ways=ways):
            results = []
            for call in range(12):
                value = spread_out(rank, call, shape).astype(dtype)
                x, out = give(value.copy()), give(np.zeros(shape, dtype))
                given = (None, out, x)[call % 3]
                result = ways[rank](x, given)
                assert given is None or result is given
                assert given is x or take(x).tobytes() == value.tobytes()
                results.append(take(result))
            return results

        for results in job.on_threads(body):
            for call, result in enumerate(results):
                assert result.dtype == dtype
                wanted = sum(spread_out(rank, call, shape) for rank in range(ranks))
                np.testing.assert_array_equal(result.astype(float), wanted, f"{plan.algorithm}, call {call}")
        job.close()


def test_the_fast_path_takes_no_tensors_that_require_gradients():
    torch = pytest.importorskip("torch")
    for dtype in (torch.float32, torch.bfloat16):
        kind = BFLOAT16 if dtype == torch.bfloat16 else np.dtype(np.float32)
        layout = SUM.layout({"value": ((4,), kind)})
        job = Job(every_plan(switch(1), "allreduce", SUM, layout)[0], layout, SUM)
        way = bind_tensors(job.fast_path[0], [kind], bare=True)
        plain, graded = torch.ones(4, dtype=dtype), torch.ones(4, dtype=dtype, requires_grad=True)
        assert way(graded, None) is None and way(plain, graded) is None
        assert way(plain, None).tolist() == [1.0] * 4
        job.close()


def test_the_fast_path_of_bare_values_is_one_call_at_a_time():
    told = []

    def combine(a, b):
        told.append([caller.refusal for caller in job.callers])
        return {"value": a["value"] + b["value"]}

    operator = replace(SUM, kernel=None, combine=combine)
    layout = operator.layout({"value": ((4,), np.float32)})
    job = Job(every_plan(switch(2), "allreduce", operator, layout)[0], layout, operator)
    x = np.ones(4, np.float32)
    assert job.fast_path[0](np.ones(5, np.float32), None) is None
    assert job.callers[0].refusal is None  # such a value is refused, not the next one
    job.callers[0].refusal = "it was closed"
    assert job.fast_path[0](x, None) is None
    assert (job.shared[0].epoch, job.callers[0].recorder.calls) == (0, 0)
    job.callers[0].refusal = None
    for result in job.on_threads(lambda rank: job.fast_path[rank](x, None)):
        np.testing.assert_array_equal(result, 2 * x)
    assert told and all(BUSY in refusals for refusals in told)
    assert [caller.refusal for caller in job.callers] == [None, None]
    job.close()


def test_the_fast_path_of_tensors_by_field():
    torch = pytest.importorskip("torch")
    values = [partial(rank, (7,), 5) for rank in range(2)]
    for name, job in jobs(switch(2), (7,), 5):

        def body(rank, job=job):
            fast_path = bind_tensors(job.fast_path[rank], [np.dtype(np.float32)], bare=False)
            x = {field: torch.from_numpy(array.copy()) for field, array in values[rank].items()}
            out = {field: torch.zeros_like(part) for field, part in x.items()}
            assert fast_path(values[rank], None) is None and fast_path(x, values[rank]) is None  # arrays are none
            fresh = fast_path(x, None)
            assert fast_path(x, out) is out and fast_path(x, x) is x
            return fresh, out, x

        for results in job.on_threads(body):
            for result in results:
                assert_close({field: part.numpy() for field, part in result.items()}, exact(values), 2, name)


class Sub(np.ndarray):
    pass


OUT, LSE = np.zeros((6, 4), np.float32), np.zeros(6, np.float32)
MISFITS = {
    "a field is missing": {"out": OUT},
    "a field has another name": {"out": OUT, "LSE": LSE},
    "dtype": {"out": OUT.astype(np.float64), "lse": LSE},
    "dtype of the same size": {"out": OUT, "lse": LSE.view(np.int32)},
    "byte order": {"out": OUT, "lse": LSE.astype(">f4")},
    "rows": {"out": OUT[:5], "lse": LSE[:5]},
    "the same bytes in other axes": {"out": OUT.reshape(4, 6), "lse": LSE},
    "an axis more": {"out": OUT, "lse": LSE[:, None]},
    "an axis less": {"out": OUT.ravel(), "lse": LSE},
    "strides": {"out": np.zeros((4, 6), np.float32).T, "lse": LSE},
    "alignment": {"out": np.zeros(97, np.uint8)[1:].view(np.float32).reshape(6, 4), "lse": LSE},
    "subclass": {"out": OUT, "lse": LSE.view(Sub)},
    "a list": {"out": OUT, "lse": LSE.tolist()},
    "a scalar": {"out": OUT, "lse": np.float32(0)},
    "None": {"out": None, "lse": LSE},
    "a field more": {"out": OUT, "lse": LSE, "max": LSE},
    "no dict": (OUT, LSE),
}


MISFITS_OF_X = {**MISFITS, "another order of fields": {"lse": LSE, "out": OUT}}
"""Values in another order are another call on ranks that cannot take the fast path."""


@pytest.mark.parametrize("what", MISFITS_OF_X)
def test_the_fast_path_does_nothing_with_values_that_do_not_fit(what):
    values = [partial(rank, (6,), 4) for rank in range(2)]
    for name, job in jobs(switch(2), (6,), 4):
        before = job.whole.tobytes()
        assert job.fast_path[0](MISFITS_OF_X[what], None) is None
        assert job.whole.tobytes() == before
        assert (job.shared[0].epoch, job.callers[0].recorder.calls, job.callers[0].refusal) == (0, 0, None)
        for result in job.on_threads(lambda rank, job=job: fast_path(job, rank, values[rank])):
            assert_close(result, exact(values), 2, name)
        assert (job.shared[0].epoch, job.callers[0].recorder.calls, job.callers[0].refusal) == (1, 1, None)


def overlapping():
    whole = np.zeros(36, np.float32)
    return {"out": whole[:24].reshape(6, 4), "lse": whole[20:26]}


X = {"out": np.zeros((6, 4), np.float32), "lse": np.zeros(6, np.float32)}
READ_ONLY = np.zeros(6, np.float32)
READ_ONLY.flags.writeable = False
SHIFTED = np.zeros(7, np.float32)
MISPLACED = {
    "read-only": (X, {"out": OUT, "lse": READ_ONLY}),
    "overlaps itself": (X, overlapping()),
    "one array twice": (X, {"out": OUT, "lse": OUT.reshape(-1)[:6]}),
    "lies in another field of the value": (X, {"out": OUT, "lse": X["out"].reshape(-1)[6:12]}),
    "overlaps its field of the value": ({"out": OUT, "lse": SHIFTED[:6]}, {"out": OUT, "lse": SHIFTED[1:]}),
}


@pytest.mark.parametrize("what", [*MISFITS, *MISPLACED, "the send buffer"])
def test_the_fast_path_does_nothing_where_the_result_does_not_fit(what):
    x, out = MISPLACED.get(what, (X, MISFITS.get(what)))
    values = [partial(rank, (6,), 4) for rank in range(2)]
    for name, job in jobs(switch(2), (6,), 4):
        given = job.engines[0][0].views if what == "the send buffer" else out
        if given is None:  # the plan splits the value: there is none
            continue
        before = job.whole.tobytes()
        assert job.fast_path[0](x, given) is None
        assert job.whole.tobytes() == before
        assert (job.shared[0].epoch, job.callers[0].recorder.calls, job.callers[0].refusal) == (0, 0, None)
        for result in job.on_threads(lambda rank, job=job: fast_path_into(job, rank, values[rank])):
            assert_close(result, exact(values), 2, name)


ROWS = 7


def wanted(name, values, rank):
    """What a rank gets from a collective of its kind, root 1."""
    if name == "allgather":
        return np.concatenate(values)
    total, root = sum(values), min(1, len(values) - 1)
    results = {
        "reduce": total if rank == root else None,
        "broadcast": values[root],
        "scan": sum(values[: rank + 1]),
        "exscan": sum(values[:rank]) if rank else None,  # the identity is not the engine's affair
        "reduce_scatter": np.split(total, np.cumsum(parts(len(values)))[:-1])[rank],
    }
    return results[name]


def parts(ranks):
    """Uneven, and one of them empty."""
    cuts = [0, *(min(ROWS, 3 * rank) for rank in range(1, ranks)), ROWS]
    return [high - low for low, high in pairwise(cuts)]


@pytest.mark.parametrize(
    ("name", "ranks"),
    alternating(["reduce", "broadcast", "reduce_scatter", "allgather", "scan", "exscan"], [1, 2, 3, 5]),
)
def test_the_fast_path_of_every_collective(name, ranks):
    layout = SUM.layout({"value": ((ROWS, 2), np.float32)})
    cut = [2 * rows for rows in parts(ranks)] if name in IN_PARTS else None
    root = min(1, ranks - 1)
    shapes = [(rows, 2) if name == "allgather" else (ROWS, 2) for rows in parts(ranks)]
    for plan in every_plan(switch(ranks), name, SUM, layout, root, parts=cut):
        job = Job(plan, layout, SUM)

        def body(rank, job=job):
            results = []
            for call in range(CALLS):
                x = spread_out(rank, call, shapes[rank]).astype(np.float32)
                fresh = job.fast_path[rank](x, None)
                assert np.array_equal(x, spread_out(rank, call, shapes[rank]))
                out = None if fresh is NOTHING else np.full_like(fresh, np.nan)
                into = job.fast_path[rank](x, out)
                assert into is (NOTHING if out is None else out)
                both = x if fresh is NOTHING or x.shape == fresh.shape else np.full_like(fresh, np.nan)
                in_place = job.fast_path[rank](x, both)
                assert in_place is (NOTHING if out is None else both)
                results.append((fresh, into, in_place))
            return results

        found = job.on_threads(body)
        assert [shared.epoch for shared in job.shared] == [3 * CALLS] * ranks
        for call in range(CALLS):
            values = [spread_out(rank, call, shapes[rank]) for rank in range(ranks)]
            for rank in range(ranks):
                want = wanted(name, values, rank)
                for result in found[rank][call]:
                    assert (result is NOTHING) == (name == "reduce" and rank != root)
                    if want is not None:
                        np.testing.assert_array_equal(result, want, f"{plan.algorithm}, call {call}, rank {rank}")
        job.close()


def test_values_and_results_of_other_shapes_do_not_fit():
    layout = SUM.layout({"value": ((ROWS, 2), np.float32)})
    plan = every_plan(switch(2), "reduce_scatter", SUM, layout, parts=[6, 8])[0]
    job = Job(plan, layout, SUM)
    x, out = np.zeros((ROWS, 2), np.float32), np.zeros((3, 2), np.float32)
    for value, given in (
        (out, None),
        (x, x),
        (x, x[:3]),  # of its shape, but in the value: made elsewhere and copied
        (x, x[1:4]),
        (x, np.zeros((4, 2), np.float32)),
        (x.astype(np.int32), out),
        (None, out),
    ):
        assert job.fast_path[0](value, given) is None
    assert job.shared[0].epoch == 0
    job.close()


def test_calls_are_counted_and_noted_and_now_and_then_swept():
    job = dict(jobs(switch(1), (7,), 5))["flat"]
    recorder, swept = job.callers[0].recorder, []
    recorder.sweep = lambda: swept.append(recorder.calls)
    value = partial(0, (7,), 5)
    before_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    for _ in range(2 * (SWEEP_MASK + 1)):
        job.fast_path[0](value, None)
    assert swept == [SWEEP_MASK + 1, 2 * (SWEEP_MASK + 1)]
    assert recorder.calls == job.shared[0].epoch == swept[-1]
    assert set(recorder.latest()) == set(range(swept[-1] - TOLD + 1, swept[-1] + 1))
    assert set(recorder.latest().values()) == {16}
    times_ns = [recorder.record[2 + 2 * (number & MASK)] for number in range(swept[-1] - MASK, swept[-1] + 1)]
    assert before_ns < times_ns[0] and times_ns == sorted(times_ns)
    assert times_ns[-1] <= time.clock_gettime_ns(time.CLOCK_MONOTONIC)


def test_a_sweep_that_fails_ends_the_call():
    job = dict(jobs(switch(1), (7,), 5))["flat"]
    caller, value = job.callers[0], partial(0, (7,), 5)

    def fail():
        raise ValueError("planted")

    for _ in range(SWEEP_MASK):
        job.fast_path[0](value, None)
    caller.recorder.sweep = fail
    with pytest.raises(ValueError, match="planted"):
        job.fast_path[0](value, None)
    assert (caller.recorder.calls, caller.refusal) == (SWEEP_MASK + 1, "planted")


@pytest.mark.parametrize("bare", [True, False])
def test_an_interrupt_closes_the_communicator(monkeypatch, bare):
    """Signals are handled when the compiled code is through: the communicator must not stay busy."""

    def interrupted(*_):
        raise KeyboardInterrupt("planted")

    monkeypatch.setattr("topocomm.native._native.bind_call", lambda **_: interrupted)
    if bare:
        layout = SUM.layout({"value": ((7, 2), np.float32)})
        job, value = Job(every_plan(switch(1), "allreduce", SUM, layout)[0], layout, SUM), np.ones((7, 2), np.float32)
    else:
        job, value = dict(jobs(switch(1), (7,), 5))["flat"], partial(0, (7,), 5)
    with pytest.raises(KeyboardInterrupt):
        job.fast_path[0](value, None)
    assert job.callers[0].refusal == "planted"
